// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "scan/tokens.h"

namespace packattn::cli {

/// The message pattern that an expression makes: literal text as it is, everything else as
/// "{expression}". Follows concatenation (`+`, adjacent literals, `<<`), f-strings, `%`,
/// `str.format`, fmt::format and std::format, std::to_string, and parentheses. `source` is the text
/// that the tokens came from.
std::string message_pattern(Tokens expression, std::string_view source);

/// The same for arguments that a check writes one after the other, as TORCH_CHECK does.
std::string joined_pattern(Tokens arguments, std::string_view source);

/// Whether an expression holds a string literal outside of subscripts.
bool has_text(Tokens expression);

}  // namespace packattn::cli
