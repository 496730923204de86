// SPDX-License-Identifier: Apache-2.0
#include "scan/message.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace packattn::cli {
namespace {

using Kind = Token::Kind;

// The expression as it stands in the source, on one line.
std::string quoted(Tokens expression, std::string_view source) {
  if (expression.empty()) return {};
  std::string text;
  for (const char c :
       source.substr(expression.front().begin, expression.back().end - expression.front().begin)) {
    if (std::isspace(static_cast<unsigned char>(c)) == 0) text += c;
    else if (!text.empty() && text.back() != ' ') text += ' ';
  }
  return text;
}

std::string placeholder(const std::string& expression) {
  // Braces inside would end the placeholder early.
  std::string name = expression;
  std::erase_if(name, [](char c) { return c == '{' || c == '}'; });
  return fmt::format("{{{}}}", name.empty() ? "value" : name);
}

bool is_string(const Token& token) { return token.kind == Kind::string; }

// Adjacent literals.
std::string literal(Tokens strings) {
  std::string text;
  for (const Token& token : strings) {
    for (const StringPart& part : token.parts) {
      text += part.placeholder ? placeholder(part.text) : part.text;
    }
  }
  return text;
}

// The name of a call `a::b.c(...)` that is the whole expression, and its arguments.
struct Call {
  std::string name;
  std::vector<Tokens> arguments;
};
std::optional<Call> call_of(Tokens expression) {
  std::size_t open = 0;
  std::string name;
  while (open < expression.size() && (expression[open].kind == Kind::name ||
                                      expression[open].is("::") || expression[open].is("."))) {
    name += expression[open++].text;
  }
  if (name.empty() || open >= expression.size()) return {};
  if (!expression[open].is("(") && !expression[open].is("{")) return {};
  if (behind_bracket(expression, open) != expression.size()) return {};
  return Call{std::move(name),
              split(expression.subspan(open + 1, expression.size() - open - 2), ",")};
}

// "... {} ... {0} ... {name!r:>8} ..." with its arguments put in.
std::string filled(std::string_view format, std::span<const Tokens> arguments,
                   std::string_view source) {
  std::string text;
  std::size_t next = 0;
  while (!format.empty()) {
    const bool doubled = format.starts_with("{{") || format.starts_with("}}");
    const std::size_t close = format.find('}');
    if (doubled || format.front() != '{' || close == std::string_view::npos) {
      text += format.front();
      format.remove_prefix(doubled ? 2 : 1);
      continue;
    }
    std::string name(format.substr(1, close - 1));
    name.resize(std::min(name.find_first_of(":!"), name.size()));
    const bool numbered = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
      return std::isdigit(c) != 0;
    });
    const std::size_t index = numbered && name.size() < 4 ? std::stoul(name) : next;
    if (name.empty()) ++next;
    if ((numbered || name.empty()) && index < arguments.size()) {
      name = quoted(arguments[index], source);
    }
    text += placeholder(name);
    format.remove_prefix(close + 1);
  }
  return text;
}

// "%d of %s" with its arguments put in.
std::string percent_filled(std::string_view format, std::span<const Tokens> arguments,
                           std::string_view source) {
  std::string text;
  std::size_t next = 0;
  while (!format.empty()) {
    if (format.front() != '%' || format.size() == 1) {
      text += format.front();
      format.remove_prefix(1);
      continue;
    }
    if (format[1] == '%') {
      text += '%';
      format.remove_prefix(2);
      continue;
    }
    const std::size_t end = format.find_first_of("diouxXeEfFgGcrspa", 1);
    if (end == std::string_view::npos) break;
    std::string name;
    if (format[1] == '(') name = format.substr(2, format.find(')') - 2);
    else if (next < arguments.size()) name = quoted(arguments[next++], source);
    text += placeholder(name);
    const std::size_t name_end = format[1] == '(' ? format.find(')') : 0;
    format.remove_prefix(
        std::min(format.size(), format.find_first_of("diouxXeEfFgGcrspa", name_end + 1) + 1));
  }
  return text + std::string(format);
}

Tokens without_parentheses(Tokens expression) {
  while (expression.size() > 2 && expression.front().is("(") &&
         behind_bracket(expression, 0) == expression.size()) {
    expression = expression.subspan(1, expression.size() - 2);
  }
  return expression;
}

std::optional<std::string> from_call(Tokens expression, std::string_view source) {
  const auto call = call_of(expression);
  if (!call) return {};
  const std::vector<Tokens>& arguments = call->arguments;
  const std::string_view name = call->name;
  const auto named = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  if (named({"fmt::format", "std::format", "absl::Substitute"}) &&
      std::ranges::all_of(arguments.front(), is_string)) {
    return filled(literal(arguments.front()), std::span(arguments).subspan(1), source);
  }
  if (named({"std::string", "str", "std::string_view"})) {
    return message_pattern(arguments.front(), source);
  }
  if (named({"std::to_string", "repr"})) return placeholder(quoted(arguments.front(), source));
  if (named({"absl::StrCat", "c10::str", "at::str"})) {
    std::string text;
    for (const Tokens argument : arguments) text += message_pattern(argument, source);
    return text;
  }
  return {};
}

// "...".format(a, b)
std::optional<std::string> from_format_method(Tokens expression, std::string_view source) {
  const auto strings = static_cast<std::size_t>(
      std::ranges::distance(expression.begin(), std::ranges::find_if_not(expression, is_string)));
  if (strings == 0 || expression.size() < strings + 4) return {};
  const Tokens rest = expression.subspan(strings);
  if (!rest[0].is(".") || !rest[1].is("format") || !rest[2].is("(")) return {};
  if (behind_bracket(rest, 2) != rest.size()) return {};
  const std::vector<Tokens> arguments = split(rest.subspan(3, rest.size() - 4), ",");
  return filled(literal(expression.first(strings)), arguments, source);
}

// "..." % (a, b)
std::optional<std::string> from_percent(Tokens expression, std::string_view source) {
  const std::vector<Tokens> sides = split(expression, "%");
  if (sides.size() != 2 || sides[0].empty() || sides[1].empty()) return {};
  const Tokens format = without_parentheses(sides[0]);
  if (!std::ranges::all_of(format, is_string)) return {};
  return percent_filled(literal(format), split(without_parentheses(sides[1]), ","), source);
}

// "#x" of a macro is the text of its argument.
std::string with_stringized(Tokens expression, std::string_view source) {
  std::string text;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    if (!is_string(expression[i])) continue;
    const Tokens before = expression.subspan(begin, i - begin);
    if (!before.empty()) {
      text += placeholder(quoted(before.front().is("#") ? before.subspan(1) : before, source));
    }
    text += literal(expression.subspan(i, 1));
    begin = i + 1;
  }
  const Tokens after = expression.subspan(begin);
  if (!after.empty()) {
    text += placeholder(quoted(after.front().is("#") ? after.subspan(1) : after, source));
  }
  return text;
}

std::string concatenated(std::span<const Tokens> pieces, std::string_view source) {
  std::string text;
  for (const Tokens piece : pieces) text += message_pattern(piece, source);
  return text;
}

}  // namespace

std::string message_pattern(Tokens expression, std::string_view source) {
  expression = without_parentheses(expression);
  if (expression.empty()) return {};
  if (std::ranges::all_of(expression, is_string)) return literal(expression);
  if (expression.size() == 1 && expression.front().kind == Kind::number) {
    return std::string(expression.front().text);
  }
  for (const std::string_view separator : {"<<", "+"}) {
    const std::vector<Tokens> pieces = split(expression, separator);
    if (pieces.size() > 1 && std::ranges::any_of(pieces, has_text)) {
      return concatenated(pieces, source);
    }
  }
  if (auto text = from_percent(expression, source)) return *text;
  if (auto text = from_format_method(expression, source)) return *text;
  if (auto text = from_call(expression, source)) return *text;
  const bool mixed = std::ranges::any_of(expression, is_string) &&
                     std::ranges::none_of(expression, [](const Token& token) {
                       return token.is("(") || token.is("[") || token.is("if") || token.is("?");
                     });
  return mixed ? with_stringized(expression, source) : placeholder(quoted(expression, source));
}

std::string joined_pattern(Tokens arguments, std::string_view source) {
  return concatenated(split(arguments, ","), source);
}

bool has_text(Tokens expression) {
  for (std::size_t i = 0; i < expression.size(); ++i) {
    if (is_string(expression[i])) return true;
    if (expression[i].is("[")) i = behind_bracket(expression, i) - 1;
  }
  return false;
}

}  // namespace packattn::cli
