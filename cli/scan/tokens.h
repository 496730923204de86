// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace packattn::cli {

enum class Language { python, cpp };

/// A piece of a string literal: text as the program sees it, or the expression in an f-string's
/// braces.
struct StringPart {
  std::string text;
  bool placeholder = false;

  friend bool operator==(const StringPart&, const StringPart&) = default;
};

struct Token {
  enum class Kind { name, number, string, symbol, end_of_statement };
  Kind kind = Kind::symbol;
  std::size_t begin = 0, end = 0;  ///< in the source
  std::string_view text;           ///< the source between them
  std::vector<StringPart> parts = {};

  bool is(std::string_view symbol) const {
    return (kind == Kind::symbol || kind == Kind::name) && text == symbol;
  }
};
using Tokens = std::span<const Token>;

/// The tokens of a source without comments; any text is taken, also one that is no valid program.
/// In Python an end_of_statement stands for each line end outside brackets. The views point into
/// `source`.
std::vector<Token> tokenize(std::string_view source, Language language);

/// Behind the bracket that closes the one at `open`; the end of `tokens` if none does.
std::size_t behind_bracket(Tokens tokens, std::size_t open);

/// Pieces of `tokens` between the separators that stand outside brackets; empty pieces included.
std::vector<Tokens> split(Tokens tokens, std::string_view separator);

}  // namespace packattn::cli
