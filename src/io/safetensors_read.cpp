// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "packattn/io.h"

#include "errors/fault_list.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace packattn {

struct SafetensorsFile::State {
  explicit State(const std::filesystem::path& file_path)
      : path(file_path.string()), file(file_path), header(io::parse_header(file.bytes(), path)) {
    for (const auto& [name, entry] : header.tensors) {
      if (!aligned(entry)) copies.emplace(name, copy_of(entry));
    }
  }

  const std::byte* data(const io::HeaderEntry& entry) const {
    return file.bytes().data() + header.data_start + entry.begin;
  }
  bool aligned(const io::HeaderEntry& entry) const {
    return reinterpret_cast<std::uintptr_t>(data(entry)) % entry.type->bytes == 0;
  }
  std::unique_ptr<std::byte[]> copy_of(const io::HeaderEntry& entry) const {
    auto copy = std::make_unique<std::byte[]>(entry.end - entry.begin);
    std::memcpy(copy.get(), data(entry), entry.end - entry.begin);
    return copy;
  }

  std::string path;
  io::MappedFile file;
  io::Header header;
  // The format aligns nothing: a byte tensor may push the next one off its element size.
  std::map<std::string, std::unique_ptr<std::byte[]>> copies;
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : state_(std::make_shared<const State>(path)) {}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& tensor : state_->header.tensors) names.push_back(tensor.first);
  return names;
}

bool SafetensorsFile::contains(const std::string& name) const {
  return state_->header.tensors.contains(name);
}

TensorView SafetensorsFile::tensor(const std::string& name) const {
  const auto found = state_->header.tensors.find(name);
  if (found == state_->header.tensors.end()) {
    fail(Code::tensor_not_in_file, {.argument = state_->path,
                                    .value = name,
                                    .limit = fmt::format("{}", fmt::join(names(), ", "))});
  }
  const io::HeaderEntry& entry = found->second;
  const auto copy = state_->copies.find(name);
  const std::byte* data = copy != state_->copies.end() ? copy->second.get() : state_->data(entry);
  return {const_cast<std::byte*>(data), entry.type->dtype, Device{}, entry.shape, {}, true};
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return state_->header.metadata;
}

}  // namespace packattn
