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

/// A safetensors file, mapped read-only. The views live as long as the file object.
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

/// Writes contiguous host tensors. Raises PA7004 if the file cannot be written, PA1xxx for a
/// tensor that is not a contiguous host tensor of a safetensors type.
PACKATTN_EXPORT void save_safetensors(const std::filesystem::path& path,
                                      const std::map<std::string, TensorView>& tensors,
                                      const std::map<std::string, std::string>& metadata = {});

}  // namespace packattn
