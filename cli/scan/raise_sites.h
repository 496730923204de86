// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scan/tokens.h"

namespace packattn::cli {

/// A place in a source where an error or a warning is raised.
struct RaiseSite {
  std::size_t begin = 0;  ///< in the source
  std::string error_class;
  std::string pattern;  ///< the message, what varies in {braces}
  bool warning = false;
  std::optional<int> http_status = {};
};

/// The raise sites of a source, in its order. Python: `raise` of a class, `assert` with a message,
/// `warnings.warn`. C++: `throw` of a new object, and the macros that check or raise with a text
/// (TORCH_CHECK, CHECK(...) << ..., NVTE_ERROR and whatever is named alike). A message that is
/// built in a variable just before is followed.
std::vector<RaiseSite> raise_sites(std::string_view source, Language language);

}  // namespace packattn::cli
