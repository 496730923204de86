// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "packattn/tensor.h"

namespace packattn::io {

/// An element type under its name in safetensors files.
struct FileType {
  std::string_view name;  ///< "BF16"
  DType dtype;            ///< other, where packattn has no such type
  std::size_t bytes;
};
std::span<const FileType> file_types();

struct HeaderEntry {
  const FileType* type = nullptr;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< offsets into the data, which follows the header
  std::uint64_t end = 0;
};

struct Header {
  std::map<std::string, HeaderEntry> tensors;
  std::map<std::string, std::string> metadata;
  std::uint64_t data_start = 0;  ///< offset in the file
};

/// The length that precedes the header, and the largest header that anybody writes.
inline constexpr std::uint64_t length_bytes = 8;
inline constexpr std::uint64_t max_header_bytes = 100'000'000;

/// Reads the header of a whole file. Everything in the result is checked: types are known, offsets
/// fit shapes and types, and the tensors cover the data once, without holes. Memory stays in
/// proportion to the header. Raises PA7002; `path` names the file in it.
Header parse_header(std::span<const std::byte> file, const std::string& path);

}  // namespace packattn::io
