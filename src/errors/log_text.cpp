// SPDX-License-Identifier: Apache-2.0
// g++ 12 warns inside its own <regex> once sanitizers are on (GCC bug 105562).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "errors/log_text.h"

#include <algorithm>
#include <regex>

namespace packattn {
namespace {

// Bounds the work for a whole log file: the error is at the end of what people paste.
constexpr std::size_t max_text = 16384;
constexpr std::size_t max_lines = 64;
// std::regex recurses once a character, so it only ever sees the start of a line.
constexpr std::size_t prefix_window = 160;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

const std::regex& prefix() {
  static const std::regex pattern(
      "\\s*(?:"
      // 2026-08-28T05:10:05.995Z, 08-28 05:10:05, 05:10:05,995
      "(?:\\d{2,4}[-/]\\d{2}(?:[-/]\\d{2})?[t ])?\\d{1,2}:\\d{2}:\\d{2}(?:[.,]\\d+)?z?:?\\s"
      "|\\[[^\\]]*\\]:?|\\([^)]*pid[^)]*\\):?"  // [rank0], (EngineCore pid=7)
      "|<?(?:error|warning|warn|info|debug|critical|fatal)>?\\s*[:|-]?\\s"
      "|e\\d{4}(?=\\s)|e\\s{1,4}(?=\\S)|[|>$#-]+\\s"  // glog, pytest, quotes
      "|[\\w./\\\\-]+\\.(?:py|cpp|cc|cu|cuh|h|hpp|rs)(?::|\", line )\\d+[\\]:,)]*"
      "|terminate called[^:]*:|raise\\s"
      "|(what\\(\\):|(?:\\w+\\.)*\\w*(?:error|exception|warning|failure|interrupt)(?:\\[\\w+\\])?:)"
      "|error\\[pa\\d{4}\\]:"
      ")\\s*",
      std::regex::icase | std::regex::optimize);
  return pattern;
}

// A regular expression is slow to say that a line has no prefix, and most have none: what begins
// with a letter has a colon or a quotation mark in it, or is one of a few words.
bool may_have_prefix(std::string_view start) {
  if (start.empty() || start.front() == '{') return false;
  const char first = lower(start.front());
  if (first != '_' && (first < 'a' || first > 'z')) return true;
  return start.find_first_of(":\"") != std::string_view::npos ||
         std::string_view("cdefirw").find(first) != std::string_view::npos;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string line = collapsed(text.substr(0, end));
    if (!line.empty()) lines.push_back(std::move(line));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

}  // namespace

std::string collapsed(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    if (!is_space(c)) result += c;
    else if (!result.empty() && result.back() != ' ') result += ' ';
  }
  if (!result.empty() && result.back() == ' ') result.pop_back();
  return result;
}

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), lower);
  return result;
}

Unprefixed strip_prefix(std::string_view line) {
  std::match_results<std::string_view::const_iterator> found;
  bool raised = false;
  while (true) {
    const std::string_view start = line.substr(0, prefix_window);
    if (!may_have_prefix(start) || !std::regex_search(start.begin(), start.end(), found, prefix(),
                                                      std::regex_constants::match_continuous)) {
      return {line, raised};
    }
    const auto length = static_cast<std::size_t>(found.length());
    if (length == 0 || length == line.size()) return {line, raised};
    raised = raised || found[1].matched;
    line.remove_prefix(length);
  }
}

std::string_view without_prefix(std::string_view line) { return strip_prefix(line).rest; }

std::vector<Candidate> candidate_messages(std::string_view text) {
  if (text.size() > max_text) text.remove_prefix(text.size() - max_text);
  std::vector<std::string> lines = lines_of(text);
  if (lines.size() > max_lines) lines.erase(lines.begin(), lines.end() - max_lines);

  std::vector<std::string_view> prefixes;
  std::vector<Unprefixed> stripped;
  for (const std::string_view line : lines) {
    stripped.push_back(strip_prefix(line));
    prefixes.push_back(line.substr(0, line.size() - stripped.back().rest.size()));
  }

  std::vector<Candidate> candidates;
  for (std::size_t last = lines.size(); last-- > 0;) {
    Candidate joined{.text = std::string(stripped[last].rest), .raised = stripped[last].raised};
    candidates.push_back(joined);
    joined.joined = true;
    for (std::size_t next = last + 1; next < std::min(last + 4, lines.size()); ++next) {
      // A logger that writes its prefix before every line of a message writes it before the first.
      const bool same_logger = prefixes[last].starts_with(prefixes[next]);
      joined.text += ' ';
      joined.text += same_logger ? stripped[next].rest : std::string_view(lines[next]);
      candidates.push_back(joined);
    }
  }
  return candidates;
}

}  // namespace packattn
