// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <ranges>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "packattn/io.h"

#include "core/strided_copy.h"
#include "errors/fault_list.h"
#include "io/new_file.h"
#include "io/safetensors_header.h"

namespace packattn {
namespace {

using Named = std::pair<const std::string, TensorView>;

const io::FileType* type_of(DType dtype) {
  const auto types = io::file_types();
  const auto found = std::ranges::find(types, dtype, &io::FileType::dtype);
  return dtype == DType::other || found == types.end() ? nullptr : &*found;
}

std::string known_dtypes() {
  std::vector<std::string> names;
  for (const io::FileType& type : io::file_types()) {
    if (type.dtype != DType::other) names.push_back(to_string(type.dtype));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void check(const std::string& name, const TensorView& tensor, FaultList& faults) {
  if (!tensor.present()) {
    faults.add(Code::tensor_missing, {.argument = name, .limit = "any shape"});
    return;
  }
  if (!type_of(tensor.dtype())) {
    faults.add(Code::tensor_dtype,
               {.argument = name, .value = to_string(tensor.dtype()), .limit = known_dtypes()});
  }
  if (!tensor.device().is_host()) {
    faults.add(Code::tensor_device, {.argument = name,
                                     .position = "the file",
                                     .value = to_string(tensor.device()),
                                     .limit = to_string(Device{})});
  }
  if (tensor.rank() > TensorView::max_rank) {
    faults.add(Code::tensor_rank, {.argument = name,
                                   .value = std::to_string(tensor.rank()),
                                   .limit = fmt::format("{} or less", TensorView::max_rank)});
    return;
  }
  for (int dim = 0; dim < tensor.rank(); ++dim) {
    if (tensor.size(dim) < 0) {
      faults.add(Code::negative_size, {.argument = name,
                                       .position = fmt::format("dimension {}", dim),
                                       .value = std::to_string(tensor.size(dim))});
    }
  }
  if (tensor.numel() > 0 && tensor.data() == nullptr) {
    faults.add(Code::null_data, {.argument = name, .value = std::to_string(tensor.numel())});
  }
}

std::vector<std::int64_t> shape_of(const TensorView& tensor) {
  std::vector<std::int64_t> shape;
  shape.reserve(static_cast<std::size_t>(tensor.rank()));
  for (int dim = 0; dim < tensor.rank(); ++dim) shape.push_back(tensor.size(dim));
  return shape;
}

std::size_t bytes_of(const TensorView& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype());
}

bool contiguous(const TensorView& tensor) {
  std::int64_t expected = 1;
  for (int dim = tensor.rank() - 1; dim >= 0; --dim) {
    if (tensor.size(dim) != 1 && tensor.stride(dim) != expected) return false;
    expected *= tensor.size(dim);
  }
  return true;
}

void write_data(const TensorView& tensor, io::NewFile& file) {
  if (tensor.numel() == 0) return;
  if (contiguous(tensor)) {
    file.write({tensor.as<const std::byte>(), bytes_of(tensor)});
    return;
  }
  std::vector<std::byte> buffer(bytes_of(tensor));
  const TensorView packed(buffer.data(), tensor.dtype(), Device{}, shape_of(tensor));
  copy_inner(tensor, 0, tensor.as<const std::byte>(), packed, 0, buffer.data());
  file.write(buffer);
}

// Space up to a multiple of 8 after the header, and wide elements first, align every tensor.
std::string header_text(const std::vector<const Named*>& in_order,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t begin = 0;
  for (const Named* tensor : in_order) {
    const std::uint64_t end = begin + bytes_of(tensor->second);
    header[tensor->first] = {{"dtype", type_of(tensor->second.dtype())->name},
                             {"shape", shape_of(tensor->second)},
                             {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

std::vector<const Named*> widest_first(const std::map<std::string, TensorView>& tensors) {
  std::vector<const Named*> in_order;
  in_order.reserve(tensors.size());
  for (const Named& tensor : tensors) in_order.push_back(&tensor);
  std::ranges::sort(in_order, [](const Named* a, const Named* b) {
    const std::size_t wide_a = size_of(a->second.dtype());
    const std::size_t wide_b = size_of(b->second.dtype());
    return wide_a != wide_b ? wide_a > wide_b : a->first < b->first;
  });
  return in_order;
}

}  // namespace

void save_safetensors(const std::filesystem::path& path,
                      const std::map<std::string, TensorView>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  FaultList faults;
  for (const auto& [name, tensor] : tensors) check(name, tensor, faults);
  std::move(faults).throw_if_any();

  const auto refuse = [&](std::string why) {
    fail(Code::file_unwritable, {.argument = path.string(), .value = std::move(why)});
  };
  if (tensors.contains("__metadata__")) refuse("__metadata__ is no name for a tensor");
  const std::vector<const Named*> in_order = widest_first(tensors);
  std::string header;
  try {
    header = header_text(in_order, metadata);
  } catch (const nlohmann::json::type_error&) {
    refuse("a name or a metadata text is not UTF-8");
  }
  if (header.size() > io::max_header_bytes) refuse("its header would be too large to be read");

  io::NewFile file(path);
  const std::uint64_t length = header.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const Named* tensor : in_order) write_data(tensor->second, file);
  file.finish();
}

}  // namespace packattn
