// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "packattn/export.h"
#include "packattn/tensor.h"

namespace packattn {

/// A safetensors file, mapped read-only. The views live as long as the file object or a copy of it.
/// Everything in the header is checked; a hostile file is refused and costs no memory beyond its
/// own size. Another process must not shorten the file meanwhile (replacing it is harmless).
class PACKATTN_EXPORT SafetensorsFile {
 public:
  /// Raises PA7001 (cannot be read) or PA7002 (not a well-formed safetensors file).
  explicit SafetensorsFile(const std::filesystem::path& path);

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  /// Raises PA7003 for a name that the file does not have.
  TensorView tensor(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// Writes host tensors, of any strides, contiguously. The file appears under its name when it is
/// complete, by a rename; until then, and after a failure, what was there before stays. Raises
/// PA7004 if it cannot be written, PA1xxx for a tensor that is not a host tensor of a known dtype.
PACKATTN_EXPORT void save_safetensors(const std::filesystem::path& path,
                                      const std::map<std::string, TensorView>& tensors,
                                      const std::map<std::string, std::string>& metadata = {});

}  // namespace packattn
