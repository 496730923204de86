// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "packattn/packattn.h"

#include "call.h"
#include "description.h"

namespace packattn::cli {

/// Where a call comes from: a safetensors file, or a JSON description of one without its data.
class Input {
 public:
  /// Raises PA7001, PA7002, PA7005.
  explicit Input(const std::filesystem::path& path);

  bool has_data() const { return file_.has_value(); }
  std::vector<std::string> names() const;
  /// An absent view for a name that the input does not have.
  TensorView find(const std::string& name) const;
  /// Options that the input names: "packattn.<option>" in a file's metadata, or the description's
  /// "options".
  const std::map<std::string, std::string>& options() const { return options_; }

  /// Fills the tensors of the call. Raises PA7003, one for each tensor a file has to have.
  void bind(Call& call) const;
  /// The operation that the tensors fit. Raises PA1104 if they do not tell it.
  Op usual_op() const;

 private:
  std::optional<SafetensorsFile> file_;
  Description description_;
  std::map<std::string, std::string> options_;
};

/// The tensors that `bind` filled, but for boundaries.
std::vector<TensorView*> tensors_of(Call& call);

}  // namespace packattn::cli
