// SPDX-License-Identifier: Apache-2.0
#include "scan/tokens.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include <fmt/format.h>

namespace packattn::cli {
namespace {

bool starts_name(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool continues_name(char c) {
  return starts_name(c) || std::isdigit(static_cast<unsigned char>(c)) != 0;
}
bool opens(std::string_view text) { return text == "(" || text == "[" || text == "{"; }
bool closes(std::string_view text) { return text == ")" || text == "]" || text == "}"; }

class Tokenizer {
 public:
  Tokenizer(std::string_view source, Language language) : source_(source), language_(language) {}

  std::vector<Token> operator()() && {
    while (position_ < source_.size()) step();
    end_statement();
    return std::move(tokens_);
  }

 private:
  char at(std::size_t offset = 0) const {
    return position_ + offset < source_.size() ? source_[position_ + offset] : '\0';
  }
  std::string_view rest() const { return source_.substr(position_); }
  bool python() const { return language_ == Language::python; }

  void step() {
    if (at() == '\n') {
      ++position_;
      if (python() && depth_ == 0) end_statement();
    } else if (at() == '\\' && (at(1) == '\n' || at(1) == '\r')) {
      position_ += at(1) == '\r' && at(2) == '\n' ? 3 : 2;
    } else if (std::isspace(static_cast<unsigned char>(at())) != 0 || at() == '\0') {
      ++position_;
    } else if (!skip_comment() && !string()) {
      other();
    }
  }

  void end_statement() {
    if (!python()) return;
    tokens_.push_back({Token::Kind::end_of_statement, position_, position_, {}});
  }

  bool skip_comment() {
    if (python() ? at() == '#' : rest().starts_with("//")) {
      position_ = std::min(source_.find('\n', position_), source_.size());
      return true;
    }
    if (!python() && rest().starts_with("/*")) {
      const std::size_t close = source_.find("*/", position_ + 2);
      position_ = close == std::string_view::npos ? source_.size() : close + 2;
      return true;
    }
    return false;
  }

  void other() {
    const std::size_t begin = position_;
    auto kind = Token::Kind::symbol;
    if (starts_name(at())) {
      kind = Token::Kind::name;
      while (continues_name(at())) ++position_;
    } else if (std::isdigit(static_cast<unsigned char>(at())) != 0) {
      kind = Token::Kind::number;
      while (continues_name(at()) || at() == '.' || (!python() && at() == '\'')) ++position_;
    } else {
      position_ += symbol_length();
    }
    push(kind, begin);
  }

  // Only the operators that are looked for have to stay whole.
  std::size_t symbol_length() {
    if (opens(rest().substr(0, 1))) ++depth_;
    if (closes(rest().substr(0, 1)) && depth_ > 0) --depth_;
    for (const std::string_view symbol : {"<<", "::", "->", "==", "!=", "<=", ">=", "&&", "||"}) {
      if (rest().starts_with(symbol)) return 2;
    }
    return 1;
  }

  void push(Token::Kind kind, std::size_t begin, std::vector<StringPart> parts = {}) {
    tokens_.push_back(
        {kind, begin, position_, source_.substr(begin, position_ - begin), std::move(parts)});
  }

  bool string() {
    const std::size_t begin = position_;
    std::size_t quote = position_;
    while (quote < source_.size() && quote < position_ + 3 && continues_name(source_[quote]))
      ++quote;
    if (quote >= source_.size()) return false;
    const char mark = source_[quote];
    if (mark != '"' && mark != '\'') return false;
    std::string prefix(source_.substr(begin, quote - begin));
    if (!is_prefix(prefix)) return false;
    if (!python() && mark == '\'') {
      position_ = quote + 1;
      plain(mark, 1, /*raw=*/false);
      push(Token::Kind::number, begin);
      return true;
    }
    position_ = quote;
    std::ranges::transform(prefix, prefix.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const bool raw = prefix.find('r') != std::string::npos;
    if (!python() && raw) {
      push(Token::Kind::string, begin, raw_cpp());
      return true;
    }
    const bool triple = python() && rest().starts_with(std::string(3, mark));
    position_ += triple ? 3 : 1;
    const bool formatted = python() && prefix.find_first_of("ft") != std::string::npos;
    auto parts = formatted ? f_string(mark, triple ? 3 : 1, raw) : plain(mark, triple ? 3 : 1, raw);
    push(Token::Kind::string, begin, std::move(parts));
    return true;
  }

  bool is_prefix(std::string_view prefix) const {
    if (prefix.empty()) return true;
    if (python()) return prefix.find_first_not_of("rRbBuUfFtT") == std::string_view::npos;
    return prefix == "R" || prefix == "L" || prefix == "u" || prefix == "U" || prefix == "u8" ||
           prefix == "LR" || prefix == "uR" || prefix == "UR" || prefix == "u8R";
  }

  // An unfinished literal ends with its line, so that one stray quote does not hide a whole file.
  bool at_end(char mark, std::size_t marks) {
    if (position_ >= source_.size()) return true;
    if (marks == 1 && at() == '\n') return true;
    if (!rest().starts_with(std::string(marks, mark))) return false;
    position_ += marks;
    return true;
  }

  std::vector<StringPart> plain(char mark, std::size_t marks, bool raw) {
    std::string text;
    while (!at_end(mark, marks)) character(text, raw);
    return {{std::move(text)}};
  }

  std::vector<StringPart> f_string(char mark, std::size_t marks, bool raw) {
    std::vector<StringPart> parts;
    std::string text;
    while (!at_end(mark, marks)) {
      if (rest().starts_with("{{") || rest().starts_with("}}")) {
        text += at();
        position_ += 2;
      } else if (at() == '{') {
        ++position_;
        const auto [name, self_describing] = expression();
        text += self_describing;
        if (!text.empty()) parts.push_back({std::exchange(text, {})});
        parts.push_back({name, true});
      } else {
        character(text, raw);
      }
    }
    if (!text.empty()) parts.push_back({std::move(text)});
    return parts;
  }

  // What stands in the braces, without conversion and format; and "x=" of {x=}, which prints it.
  std::pair<std::string, std::string> expression() {
    const std::size_t begin = position_;
    std::size_t end = std::string_view::npos;
    int depth = 0;
    while (position_ < source_.size() && (depth > 0 || at() != '}')) {
      if ((at() == '"' || at() == '\'') && string()) {
        tokens_.pop_back();
        continue;
      }
      if (opens(rest().substr(0, 1))) ++depth;
      if (closes(rest().substr(0, 1))) --depth;
      const bool conversion = at() == '!' && at(1) != '=';
      if (depth == 0 && end == std::string_view::npos && (at() == ':' || conversion)) {
        end = position_;
      }
      ++position_;
    }
    const std::string_view inside = source_.substr(begin, std::min(end, position_) - begin);
    if (position_ < source_.size()) ++position_;
    const std::size_t first = std::min(inside.find_first_not_of(' '), inside.size());
    const std::size_t last = inside.find_last_not_of(' ');
    const bool described =
        last != std::string_view::npos && last > first && inside[last] == '=' &&
        std::string_view("=!<>").find(inside[last - 1]) == std::string_view::npos;
    std::string_view name = inside.substr(0, described ? last : inside.size()).substr(first);
    name = name.substr(0, name.find_last_not_of(' ') + 1);
    return {std::string(name), described ? std::string(inside) : std::string()};
  }

  void character(std::string& text, bool raw) {
    if (at() != '\\' || raw) {
      text += at();
      // A quote behind a backslash does not end a raw string either.
      if (at() == '\\' && position_ + 1 < source_.size()) text += source_[++position_];
      ++position_;
      return;
    }
    static constexpr std::array<std::pair<char, char>, 5> escapes{
        {{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'0', '\0'}, {'a', '\a'}}};
    const char next = at(1);
    const auto* known = std::ranges::find(escapes, next, &std::pair<char, char>::first);
    if (known != escapes.end()) text += known->second;
    else if (next != '\n') text += next;
    position_ = std::min(position_ + 2, source_.size());
  }

  std::vector<StringPart> raw_cpp() {
    ++position_;  // the quote
    const std::size_t open = source_.find('(', position_);
    if (open == std::string_view::npos || open - position_ > 16) return {};
    const std::string close = fmt::format("){}\"", source_.substr(position_, open - position_));
    const std::size_t end = std::min(source_.find(close, open), source_.size());
    position_ = std::min(end + close.size(), source_.size());
    return {{std::string(source_.substr(open + 1, end - open - 1))}};
  }

  std::string_view source_;
  Language language_;
  std::size_t position_ = 0;
  std::size_t depth_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, Language language) {
  return Tokenizer(source, language)();
}

std::size_t behind_bracket(Tokens tokens, std::size_t open) {
  std::size_t depth = 0;
  for (std::size_t i = open; i < tokens.size(); ++i) {
    if (tokens[i].kind != Token::Kind::symbol) continue;
    if (opens(tokens[i].text)) ++depth;
    if (closes(tokens[i].text) && --depth == 0) return i + 1;
  }
  return tokens.size();
}

std::vector<Tokens> split(Tokens tokens, std::string_view separator) {
  std::vector<Tokens> pieces;
  std::size_t begin = 0;
  std::size_t depth = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].kind == Token::Kind::symbol) {
      if (opens(tokens[i].text)) ++depth;
      if (closes(tokens[i].text) && depth > 0) --depth;
    }
    if (depth == 0 && tokens[i].is(separator)) {
      pieces.push_back(tokens.subspan(begin, i - begin));
      begin = i + 1;
    }
  }
  pieces.push_back(tokens.subspan(begin));
  return pieces;
}

}  // namespace packattn::cli
