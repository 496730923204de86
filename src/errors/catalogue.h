// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "packattn/error.h"

namespace packattn {

/// One line of errors/catalogue.def.
struct CatalogueEntry {
  Code code;
  std::string_view name;     ///< "boundaries_decrease"
  std::string_view message;  ///< template over the fields of a fault
  std::string_view help;
};

const CatalogueEntry& catalogue_entry(Code code);

/// Replaces {argument} {position} {value} {limit} by the fields of the fault; any other text in
/// braces stays as it is.
std::string fill_template(std::string_view text, const Fault& fault);

}  // namespace packattn
