// SPDX-License-Identifier: Apache-2.0
#include "errors/pattern.h"

#include <algorithm>
#include <cctype>

#include "errors/log_text.h"

namespace packattn {
namespace {

// A pattern with less fixed text than this matches too many sentences to say anything.
constexpr std::size_t least_weight = 7;
// Below these, the pattern has to be the whole line, and a placeholder stands for a short value.
constexpr std::size_t whole_line_weight = 12;
constexpr std::size_t short_values_weight = 24;

// A piece of fixed text is looked for by its start, and has to go on for this many characters that
// say something.
constexpr std::size_t piece_start = 12;
constexpr std::size_t least_piece = 14;
constexpr std::size_t least_part = 20;

std::size_t count_telling(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](unsigned char c) { return std::isalnum(c) != 0; }));
}

std::size_t count_words(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count(text, ' ')) + 1;
}

// Something unknown may precede a message on its line, so a leading placeholder takes all of the
// text before the first fixed part only if that is short, else its last word.
std::string leading_capture(std::string_view before) {
  if (count_words(before) > 3) before.remove_prefix(before.rfind(' ') + 1);
  return std::string(before);
}

}  // namespace

Pattern::Pattern(std::string_view source) {
  const std::string one_line = collapsed(source);
  // A message may begin as loggers' prefixes do, and those are taken off what is searched.
  std::string_view pattern = without_prefix(one_line);
  std::string literal;
  while (!pattern.empty()) {
    const std::size_t close = pattern.front() == '{' ? pattern.find('}') : std::string_view::npos;
    if (close == std::string_view::npos) {
      literal += pattern.front();
      pattern.remove_prefix(1);
      continue;
    }
    literals_.push_back(lower_case(literal));
    literal.clear();
    names_.emplace_back(pattern.substr(1, close - 1));
    pattern.remove_prefix(close + 1);
  }
  // Who quotes a message leaves out its full stop.
  if (literal.size() > 1 && literal.ends_with('.')) literal.pop_back();
  literals_.push_back(lower_case(literal));
  for (const std::string& part : literals_) weight_ += count_telling(part);
}

double Pattern::part_found_in(std::string_view lowered) const {
  std::size_t found = 0;
  for (const std::string_view part : literals_) {
    if (part.size() < piece_start) continue;
    const std::size_t at = lowered.find(part.substr(0, piece_start));
    if (at == std::string_view::npos) continue;
    const std::string_view there = lowered.substr(at, part.size());
    const auto [end, _] = std::ranges::mismatch(part, there);
    const std::size_t same = count_telling({part.begin(), end});
    if (same >= least_piece) found += same;
  }
  if (found < least_part) return 0;
  return static_cast<double>(found) / static_cast<double>(weight_);
}

std::optional<Pattern::Found> Pattern::find_in(std::string_view text,
                                               std::string_view lowered) const {
  if (weight_ < least_weight) return {};
  if (literals_.front().empty()) return find_at(text, lowered, 0);
  for (std::size_t start = lowered.find(literals_.front()); start != std::string_view::npos;
       start = lowered.find(literals_.front(), start + 1)) {
    if (auto found = find_at(text, lowered, start)) return found;
  }
  return {};
}

std::optional<Pattern::Found> Pattern::find_at(std::string_view text, std::string_view lowered,
                                               std::size_t start) const {
  Found found;
  std::size_t position = start + literals_.front().size();
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const std::string& next = literals_[i + 1];
    if (position >= text.size()) return {};
    // The last placeholder of a pattern takes the rest of the line.
    const bool last = i + 1 == names_.size();
    std::size_t end = last && next.empty() ? text.size() : lowered.find(next, position + 1);
    if (end == std::string_view::npos && last && next == ".") end = text.size();
    if (end == std::string_view::npos) return {};
    const std::string_view capture = text.substr(position, end - position);
    const bool leads = i == 0 && literals_.front().empty();
    found.captures.push_back(leads ? leading_capture(capture) : std::string(capture));
    if (leads) start = end - found.captures.back().size();
    position = std::min(end + next.size(), text.size());
  }
  const std::string_view behind = text.substr(position);
  found.whole = start == 0 && (behind.empty() || behind == ".");
  if (!found.whole && weight_ < whole_line_weight) return {};
  if (!plausible(found.captures)) return {};
  return found;
}

bool Pattern::plausible(const std::vector<std::string>& captures) const {
  return weight_ >= short_values_weight ||
         std::ranges::all_of(captures, [](const std::string& capture) {
           const std::size_t words = count_words(capture);
           return words == 1 || (words <= 4 && capture.size() <= 60);
         });
}

}  // namespace packattn
