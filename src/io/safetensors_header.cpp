// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "errors/fault_list.h"

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian and are mapped as they are");

namespace packattn::io {
namespace {

constexpr FileType types[] = {
    {"BOOL", DType::boolean, 1}, {"U8", DType::u8, 1},     {"I8", DType::i8, 1},
    {"I16", DType::i16, 2},      {"I32", DType::i32, 4},   {"I64", DType::i64, 8},
    {"F8_E4M3", DType::f8, 1},   {"F16", DType::f16, 2},   {"BF16", DType::bf16, 2},
    {"F32", DType::f32, 4},      {"F64", DType::f64, 8},   {"U16", DType::other, 2},
    {"U32", DType::other, 4},    {"U64", DType::other, 8}, {"F8_E5M2", DType::other, 1},
    {"C64", DType::other, 8},
};

// Names come from the file: what a fault repeats of them is short, and cannot steer a terminal.
std::string shown(std::string_view name) {
  std::size_t kept = std::min<std::size_t>(name.size(), 60);
  while (kept < name.size() && (static_cast<unsigned char>(name[kept]) & 0xc0U) == 0x80U) --kept;
  std::string text(name.substr(0, kept));
  std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return kept < name.size() ? text + "..." : text;
}

/// Takes the header event by event: its only legal form is two levels deep, so that nothing is
/// built for a header of another form, and a name given twice is seen.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(Header& header, std::uint64_t data_bytes)
      : header_(header), data_bytes_(data_bytes) {}

  const std::string& problem() const { return problem_; }

  bool start_object(std::size_t) override {
    switch (where_) {
      case Where::start: where_ = Where::file; return true;
      case Where::file_value:
        where_ = key_ == "__metadata__" ? Where::metadata : Where::tensor;
        return where_ == Where::metadata ? start_metadata() : start_tensor();
      default: return unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    if (where_ == Where::file) where_ = Where::file_value;
    if (where_ == Where::file_value) key_ = std::move(name);
    else field_ = std::move(name);
    return true;
  }

  bool end_object() override {
    if (where_ == Where::tensor && !finish_tensor()) return false;
    where_ = where_ == Where::file ? Where::end : Where::file;
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ != Where::tensor) return unexpected("a list");
    if (field_ == "shape" && !has_shape_) {
      has_shape_ = true;
      where_ = Where::shape;
      return true;
    }
    if (field_ == "data_offsets" && offsets_.empty()) {
      where_ = Where::offsets;
      return true;
    }
    return unexpected("a list");
  }

  bool end_array() override {
    where_ = Where::tensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (where_ == Where::shape) {
      if (entry_.shape.size() == TensorView::max_rank)
        return fail_tensor("has too many dimensions");
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return fail_tensor("has a size that does not fit 64 bits");
      }
      entry_.shape.push_back(static_cast<std::int64_t>(number));
      return true;
    }
    if (where_ == Where::offsets && offsets_.size() < 2) {
      offsets_.push_back(number);
      return true;
    }
    return unexpected("a number");
  }

  bool string(string_t& text) override {
    if (where_ == Where::metadata) {
      if (!header_.metadata.emplace(field_, std::move(text)).second) {
        return fail_with(fmt::format("metadata key {} is given twice", shown(field_)));
      }
      return true;
    }
    if (where_ != Where::tensor || field_ != "dtype" || entry_.type) return unexpected("a text");
    const auto* type = std::ranges::find(types, std::string_view(text), &FileType::name);
    if (type == std::end(types)) {
      return fail_tensor(fmt::format("has the unknown dtype {}", shown(text)));
    }
    entry_.type = type;
    return true;
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number with a fraction");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    return fail_with(fmt::format("the header is not JSON at its byte {}", position));
  }

 private:
  enum class Where { start, file, file_value, metadata, tensor, shape, offsets, end };

  bool start_metadata() {
    if (has_metadata_) return fail_with("__metadata__ is given twice");
    has_metadata_ = true;
    return true;
  }

  bool start_tensor() {
    entry_ = {};
    offsets_.clear();
    has_shape_ = false;
    return true;
  }

  bool finish_tensor() {
    if (!entry_.type) return fail_tensor("has no dtype");
    if (!has_shape_) return fail_tensor("has no shape");
    if (offsets_.size() != 2) return fail_tensor("has no data_offsets of two numbers");
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    if (entry_.begin > entry_.end || entry_.end > data_bytes_) {
      return fail_tensor(fmt::format("lies at bytes {} to {} of {} bytes of data", entry_.begin,
                                     entry_.end, data_bytes_));
    }
    std::uint64_t bytes = entry_.type->bytes;
    for (const std::int64_t size : entry_.shape) {
      if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
        return fail_tensor("has more elements than 64 bits can count");
      }
    }
    if (bytes != entry_.end - entry_.begin) {
      return fail_tensor(fmt::format("has {} bytes of data, but its shape and dtype need {}",
                                     entry_.end - entry_.begin, bytes));
    }
    if (!header_.tensors.emplace(key_, std::move(entry_)).second) {
      return fail_tensor("is given twice");
    }
    return true;
  }

  bool fail_with(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool fail_tensor(std::string_view problem) {
    return fail_with(fmt::format("tensor {} {}", shown(key_), problem));
  }
  bool unexpected(std::string_view what) {
    if (where_ == Where::start)
      return fail_with(fmt::format("the header is {}, not an object", what));
    if (where_ == Where::file_value) {
      return fail_with(fmt::format("{} is {}, not an object", shown(key_), what));
    }
    return fail_with(fmt::format("{} of {} is {}, which is not allowed there", shown(field_),
                                 shown(key_), what));
  }

  Header& header_;
  std::uint64_t data_bytes_;
  std::string problem_;
  Where where_ = Where::start;
  std::string key_;    // of the file's object
  std::string field_;  // of a tensor's or the metadata's object
  HeaderEntry entry_;
  std::vector<std::uint64_t> offsets_;
  bool has_shape_ = false;
  bool has_metadata_ = false;
};

// The format wants all data named, once: bytes that no tensor names could hide anything.
std::optional<std::string> uncovered(const Header& header, std::uint64_t data_bytes) {
  std::vector<const std::pair<const std::string, HeaderEntry>*> in_order;
  in_order.reserve(header.tensors.size());
  for (const auto& tensor : header.tensors) in_order.push_back(&tensor);
  std::ranges::sort(in_order, {}, [](const auto* tensor) {
    return std::pair(tensor->second.begin, tensor->second.end);
  });
  std::uint64_t reached = 0;
  for (const auto* tensor : in_order) {
    const auto& [name, entry] = *tensor;
    if (entry.begin < reached) return fmt::format("tensor {} overlaps another", shown(name));
    if (entry.begin > reached) {
      return fmt::format("bytes {} to {} of the data belong to no tensor", reached, entry.begin);
    }
    reached = entry.end;
  }
  if (reached != data_bytes) {
    return fmt::format("bytes {} to {} of the data belong to no tensor", reached, data_bytes);
  }
  return {};
}

}  // namespace

std::span<const FileType> file_types() { return types; }

Header parse_header(std::span<const std::byte> file, const std::string& path) {
  const auto refuse = [&](std::string why) {
    fail(Code::safetensors_malformed, {.argument = path, .value = std::move(why)});
  };
  if (file.size() < length_bytes) {
    refuse(fmt::format("it has {} bytes, and its header's length alone takes 8", file.size()));
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), length_bytes);
  if (header_bytes > max_header_bytes) {
    refuse(fmt::format("its header is said to have {} bytes; at most {} are read", header_bytes,
                       max_header_bytes));
  }
  if (header_bytes > file.size() - length_bytes) {
    refuse(fmt::format("its header is said to have {} bytes, but the file ends after {}",
                       header_bytes, file.size() - length_bytes));
  }

  Header header;
  header.data_start = length_bytes + header_bytes;
  const std::uint64_t data_bytes = file.size() - header.data_start;
  const auto* text = reinterpret_cast<const char*>(file.data()) + length_bytes;
  HeaderReader reader(header, data_bytes);
  if (!nlohmann::json::sax_parse(text, text + header_bytes, &reader)) refuse(reader.problem());
  if (auto problem = uncovered(header, data_bytes)) refuse(*std::move(problem));
  return header;
}

}  // namespace packattn::io
