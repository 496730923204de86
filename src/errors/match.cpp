// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "packattn/error.h"

#include "errors/log_text.h"
#include "errors/nearest.h"
#include "errors/pattern.h"
#include "errors/reference.h"

namespace packattn {
namespace {

// A nearest match below this shares too few words to be worth showing.
constexpr double least_score = 0.33;
constexpr std::size_t nearest_lines = 16;

/// What is searched, made once: patterns of all records and the index of their words.
struct Matcher {
  struct Line {
    std::size_t entry;
    Pattern pattern;
    bool own_words;  ///< the record's message, not another library's wording of it
  };
  std::vector<Line> lines;
  NearestIndex index;

  static const Matcher& get() {
    static const Matcher matcher;
    return matcher;
  }

 private:
  Matcher() : index(documents()) {
    const auto entries = reference_entries();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      lines.push_back({i, Pattern(entries[i].summary.message), true});
      for (const KnownWording& wording : entries[i].wordings) {
        lines.push_back({i, Pattern(wording.text), false});
      }
    }
  }

  static std::vector<std::string> documents() {
    std::vector<std::string> texts;
    for (const ReferenceEntry& entry : reference_entries()) {
      std::string text(entry.summary.message);
      for (const KnownWording& wording : entry.wordings) text.append(" ").append(wording.text);
      for (const std::string_view tag : entry.summary.tags) text.append(" ").append(tag);
      texts.push_back(std::move(text));
    }
    return texts;
  }
};

/// A match with what decides its place beside others of score 1.
struct Ranked {
  std::size_t entry = 0;
  bool named = false;  ///< by code, slug or id
  bool whole = false;
  bool own_words = true;
  bool mentioned = false;  ///< the text around it names the record's library, as tracebacks do
  std::size_t weight = 0;
  Match match;
};

bool better(const Ranked& a, const Ranked& b) {
  const auto key = [](const Ranked& r) {
    return std::tuple(r.match.score, r.named, r.weight, r.whole, r.own_words, r.mentioned);
  };
  return key(a) != key(b) ? key(a) > key(b) : a.entry < b.entry;
}

bool names_code(std::string_view lowered, std::string_view code) {
  if (code.empty()) return false;
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  const std::size_t at = lowered.find(lower_case(code));
  if (at == std::string_view::npos) return false;
  const std::size_t end = at + code.size();
  return (at == 0 || !is_word(lowered[at - 1])) &&
         (end == lowered.size() || !is_word(lowered[end]));
}

class Search {
 public:
  explicit Search(std::string_view text)
      : candidates_(candidate_messages(text)), found_(reference_entries().size()) {
    for (std::size_t i = 0; i < found_.size(); ++i) {
      found_[i].entry = i;
      found_[i].match = {reference_entries()[i].summary.id, 0, {}, {}};
    }
    by_name(lower_case(collapsed(text)));
    by_pattern();
    by_words();
  }

  std::vector<Match> best(std::size_t limit) && {
    std::erase_if(found_, [](const Ranked& r) { return r.match.score < least_score; });
    std::ranges::sort(found_, better);
    std::vector<Match> matches;
    for (Ranked& ranked : found_) {
      if (matches.size() == limit) break;
      matches.push_back(std::move(ranked.match));
    }
    return matches;
  }

 private:
  void by_name(const std::string& text) {
    for (Ranked& ranked : found_) {
      const RecordSummary& record = reference_entries()[ranked.entry].summary;
      const std::string library = lower_case(record.repo.substr(record.repo.rfind('/') + 1));
      ranked.mentioned = text.find(library) != std::string::npos;
      if (text == record.id || text == record.slug || names_code(text, record.code)) {
        ranked.named = true;
        ranked.match.score = 1;
      }
    }
  }

  void by_pattern() {
    for (const std::string& candidate : candidates_) {
      const std::string lowered = lower_case(candidate);
      for (const Matcher::Line& line : Matcher::get().lines) {
        Ranked& ranked = found_[line.entry];
        if (ranked.weight >= line.pattern.weight()) continue;
        auto found = line.pattern.find_in(candidate, lowered);
        if (!found) continue;
        ranked.weight = line.pattern.weight();
        ranked.whole = found->whole;
        ranked.own_words = line.own_words;
        ranked.match.score = 1;
        ranked.match.placeholders = line.pattern.names();
        ranked.match.captures = std::move(found->captures);
      }
    }
  }

  void by_words() {
    std::size_t looked_at = 0;
    for (const std::string& candidate : candidates_) {
      if (++looked_at > nearest_lines) break;
      const std::vector<double> scores = Matcher::get().index.scores(candidate);
      for (Ranked& ranked : found_) {
        // Never 1: that says the very message was recognised.
        const double score = std::min(0.99, scores[ranked.entry]);
        ranked.match.score = std::max(ranked.match.score, score);
      }
    }
  }

  std::vector<std::string> candidates_;
  std::vector<Ranked> found_;
};

}  // namespace

std::vector<Match> find_records(std::string_view text, std::size_t limit) {
  return Search(text).best(limit);
}

}  // namespace packattn
