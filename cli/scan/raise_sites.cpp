// SPDX-License-Identifier: Apache-2.0
#include "scan/raise_sites.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "scan/message.h"

namespace packattn::cli {
namespace {

using Kind = Token::Kind;

// How many tokens back a variable that holds a message may have been set.
constexpr std::size_t look_back = 400;

bool upper(char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; }

class Finder {
 public:
  Finder(std::string_view source, Tokens tokens) : source_(source), tokens_(tokens) {}

 protected:
  std::string_view source() const { return source_; }
  Tokens tokens() const { return tokens_; }
  const Token& token(std::size_t i) const { return tokens_[i]; }
  bool is(std::size_t i, std::string_view text) const {
    return i < tokens_.size() && tokens_[i].is(text);
  }
  bool is_name(std::size_t i) const { return i < tokens_.size() && tokens_[i].kind == Kind::name; }
  Tokens inside(std::size_t open) const {
    const std::size_t behind = behind_bracket(tokens_, open);
    return tokens_.subspan(open + 1, std::max(behind, open + 2) - open - 2);
  }

  // a.b.C or a::b::C from `i`; `i` goes behind it.
  std::string dotted_name(std::size_t& i) const {
    std::string last;
    while (is_name(i)) {
      last = token(i++).text;
      if (!(is(i, ".") || is(i, "::")) || !is_name(i + 1)) break;
      ++i;
    }
    return last;
  }

  // The message of an expression at `i`; a variable's is what was last put into it.
  std::string message(Tokens expression, std::size_t i) const {
    if (expression.empty()) return {};
    const bool variable =
        expression.front().kind == Kind::name && (expression.size() == 1 || is_text_of(expression));
    if (variable) {
      if (auto found = assigned(expression.front().text, i)) return *found;
    }
    return message_pattern(expression, source_);
  }

  void add(std::size_t i, std::string error_class, std::string pattern) {
    if (pattern.empty()) pattern = error_class;
    if (pattern.empty()) return;
    sites_.push_back({token(i).begin, std::move(error_class), std::move(pattern)});
  }
  std::vector<RaiseSite>& sites() { return sites_; }

 private:
  // stream.str(), text.c_str()
  static bool is_text_of(Tokens expression) {
    return expression.size() == 5 && expression[1].is(".") && expression[3].is("(") &&
           (expression[2].is("str") || expression[2].is("c_str"));
  }

  // `name = ...`, `name += ...` or `name << ...` before token `i`.
  std::optional<std::string> assigned(std::string_view name, std::size_t i) const {
    const std::size_t first = i > look_back ? i - look_back : 0;
    std::optional<std::string> text;
    bool literal = false;
    for (std::size_t at = first; at + 2 < i; ++at) {
      if (!token(at).is(name)) continue;
      const bool starts = is(at + 1, "=");
      const bool adds = is(at + 1, "<<") || (is(at + 1, "+") && is(at + 2, "="));
      if (!starts && !adds) continue;
      const std::size_t begin = at + (is(at + 1, "+") ? 3 : 2);
      const Tokens value = statement(begin, i);
      const std::string added = message_pattern(value, source_);
      literal = (literal && !starts) || has_text(value);
      text = starts || !text ? added : *text + added;
    }
    return literal ? text : std::nullopt;
  }

  Tokens statement(std::size_t begin, std::size_t limit) const {
    std::size_t end = begin;
    std::size_t depth = 0;
    while (end < limit) {
      const Token& at = token(end);
      if (at.kind == Kind::end_of_statement || (at.is(";") && depth == 0)) break;
      if (at.is("(") || at.is("[") || at.is("{")) ++depth;
      if ((at.is(")") || at.is("]") || at.is("}")) && depth > 0) --depth;
      ++end;
    }
    return tokens_.subspan(begin, end - begin);
  }

  std::string_view source_;
  Tokens tokens_;
  std::vector<RaiseSite> sites_;
};

// ---- Python -----------------------------------------------------------------------------------

class PythonFinder : Finder {
 public:
  using Finder::Finder;
  std::vector<RaiseSite> operator()() && {
    for (std::size_t i = 0; i < tokens().size(); ++i) {
      if (i > 0 && is(i - 1, ".")) continue;
      if (token(i).is("raise")) raised(i);
      else if (token(i).is("assert")) asserted(i);
      else if (token(i).is("warnings") && is(i + 1, ".") && is(i + 2, "warn") && is(i + 3, "("))
        warned(i);
    }
    return std::move(sites());
  }

 private:
  void raised(std::size_t i) {
    std::size_t at = i + 1;
    const std::string error_class = dotted_name(at);
    if (error_class.empty()) return;
    if (!is(at, "(")) {
      if (upper(error_class.front())) add(i, error_class, {});  // not `raise error`
      return;
    }
    std::optional<int> status;
    Tokens text;
    for (const Tokens argument : split(inside(at), ",")) {
      const bool named =
          argument.size() > 2 && argument[0].kind == Kind::name && argument[1].is("=");
      if (!named && text.empty()) text = argument;
      if (!named) continue;
      const Tokens value = argument.subspan(2);
      if (argument[0].is("status_code")) status = number(value);
      for (const std::string_view name : {"message", "msg", "detail"}) {
        if (argument[0].is(name)) text = value;
      }
    }
    const std::size_t before = sites().size();
    add(i, error_class, message(text, i));
    if (sites().size() > before) sites().back().http_status = status;
  }

  static std::optional<int> number(Tokens value) {
    if (value.size() != 1 || value[0].kind != Kind::number) return {};
    const std::string_view digits = value[0].text;
    int status = 0;
    const auto read = std::from_chars(digits.begin(), digits.end(), status);
    return read.ec == std::errc{} ? std::optional(status) : std::nullopt;
  }

  void asserted(std::size_t i) {
    std::size_t end = i + 1;
    while (end < tokens().size() && token(end).kind != Kind::end_of_statement && !is(end, ";"))
      ++end;
    const std::vector<Tokens> parts = split(tokens().subspan(i + 1, end - i - 1), ",");
    if (parts.size() == 2) add(i, "AssertionError", message(parts[1], i));
  }

  void warned(std::size_t i) {
    std::string category = "UserWarning";
    const std::vector<Tokens> arguments = split(inside(i + 3), ",");
    for (std::size_t n = 1; n < arguments.size(); ++n) {
      const Tokens argument = arguments[n];
      if (argument.empty() || argument.back().kind != Kind::name) continue;
      const bool named = argument.size() > 2 && argument[1].is("=");
      if (n == 1 ? !named || argument[0].is("category") : named && argument[0].is("category")) {
        category = argument.back().text;
      }
    }
    const std::size_t before = sites().size();
    add(i, category, message(arguments.front(), i));
    if (sites().size() > before) sites().back().warning = true;
  }
};

// ---- C++ --------------------------------------------------------------------------------------

// What a macro throws, where its name does not say so.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> macro_classes{{
    {"TORCH_CHECK_VALUE", "ValueError"},
    {"TORCH_CHECK_TYPE", "TypeError"},
    {"TORCH_CHECK_INDEX", "IndexError"},
    {"TORCH_CHECK_NOT_IMPLEMENTED", "NotImplementedError"},
    {"TORCH_CHECK", "RuntimeError"},
    {"TORCH_INTERNAL_ASSERT", "RuntimeError"},
    {"AT_ERROR", "RuntimeError"},
    {"AT_ASSERTM", "RuntimeError"},
}};

bool is_check(std::string_view macro) {
  if (std::ranges::any_of(macro, [](unsigned char c) { return std::islower(c) != 0; }))
    return false;
  for (const std::string_view word :
       {"CHECK", "ASSERT", "ERROR", "THROW", "ENFORCE", "FAIL", "REQUIRE"}) {
    if (macro.find(word) != std::string_view::npos) return true;
  }
  return macro == "LOG";
}

class CppFinder : Finder {
 public:
  using Finder::Finder;
  std::vector<RaiseSite> operator()() && {
    for (std::size_t i = 0; i < tokens().size(); ++i) {
      if (token(i).is("throw")) thrown(i);
      else if (token(i).kind == Kind::name && is(i + 1, "(") && is_check(token(i).text)) checked(i);
    }
    return std::move(sites());
  }

 private:
  void thrown(std::size_t i) {
    std::size_t at = i + 1;
    const std::string error_class = dotted_name(at);
    if (error_class.empty() || !(is(at, "(") || is(at, "{"))) return;  // `throw;`, `throw error;`
    Tokens text;
    for (const Tokens argument : split(inside(at), ",")) {
      if (text.empty() || (!has_text(text) && has_text(argument))) text = argument;
    }
    add(i, error_class, message(text, i));
  }

  void checked(std::size_t i) {
    const std::size_t behind = behind_bracket(tokens(), i + 1);
    const std::vector<Tokens> arguments = split(inside(i + 1), ",");
    std::string pattern;
    if (is(behind, "<<")) {  // CHECK(x) << "text" << x;
      if (token(i).is("LOG") &&
          !(arguments.front().size() == 1 && arguments.front()[0].is("FATAL")))
        return;
      std::size_t end = behind + 1;
      while (end < tokens().size() && !is(end, ";") && !is(end, "}")) ++end;
      pattern = message_pattern(tokens().subspan(behind + 1, end - behind - 1), source());
      if (!has_text(tokens().subspan(behind + 1, end - behind - 1))) return;
    } else {
      pattern = argument_text(arguments, i);
      // PyTorch names the condition where there is no text.
      if (pattern.empty() && arguments.size() == 1 && token(i).text.starts_with("TORCH_CHECK")) {
        const Tokens condition = arguments.front();
        if (condition.empty()) return;
        const std::size_t begin = condition.front().begin;
        pattern = "Expected " + std::string(source().substr(begin, condition.back().end - begin)) +
                  " to be true, but got false.";
      }
    }
    if (pattern.empty()) return;
    add(i, class_of(token(i).text), pattern);
  }

  // From the first argument with a literal on; or a variable that one was put into.
  std::string argument_text(const std::vector<Tokens>& arguments, std::size_t i) const {
    const auto first = std::ranges::find_if(arguments, has_text);
    if (first != arguments.end()) {
      const Token* begin = first->data();
      const Tokens last = arguments.back();
      const auto count = static_cast<std::size_t>(last.data() + last.size() - begin);
      return joined_pattern({begin, count}, source());
    }
    if (arguments.empty() || arguments.back().empty()) return {};
    const Tokens last = arguments.back();
    const std::string plain = message_pattern(last, source());
    const std::string followed = message(last, i);
    return followed == plain ? std::string() : followed;
  }

  static std::string class_of(std::string_view macro) {
    const auto* const known = std::ranges::find(
        macro_classes, macro, &std::pair<std::string_view, std::string_view>::first);
    return std::string(known != macro_classes.end() ? known->second : macro);
  }
};

}  // namespace

std::vector<RaiseSite> raise_sites(std::string_view source, Language language) {
  const std::vector<Token> tokens = tokenize(source, language);
  if (language == Language::python) return PythonFinder(source, tokens)();
  return CppFinder(source, tokens)();
}

}  // namespace packattn::cli
