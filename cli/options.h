// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>

#include "call.h"

namespace CLI {
class App;
}

namespace packattn::cli {

/// Options of a call by name, as text: "window_left" -> "128".
using OptionTexts = std::map<std::string, std::string>;

/// Adds a flag for every option to a command; what is given ends in `given`.
void add_option_flags(CLI::App& command, OptionTexts& given);

/// Sets the options of a call. Raises PA1104 (value) and PA1105 (no such option for this
/// operation), all of them at once.
void apply_options(Call& call, const OptionTexts& options);

/// The operation that "op" names, one of these. Raises PA1104.
Op parse_op(const std::string& name, std::span<const Op> of = all_ops);

/// The element type that "fp32", "fp16" or "bf16" names. Raises PA1104.
DType parse_dtype(const std::string& name);

}  // namespace packattn::cli
