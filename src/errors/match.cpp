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
// What lines around a raised message count for.
constexpr double surroundings_share = 0.7;
// A pattern with more fixed text than this says enough whatever its placeholders stand for.
constexpr std::size_t telling_weight = 16;
constexpr std::size_t longest_value = 12;

/// What is searched, made once: patterns of all records and the index of their words, which has a
/// document for each line, because a page with many wordings is not further from each of them.
struct Matcher {
  struct Line {
    std::size_t entry;
    Pattern pattern;
    bool own_words;  ///< the record's message, not another wording of it
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

  static std::vector<NearestDocument> documents() {
    std::vector<NearestDocument> texts;
    for (const ReferenceEntry& entry : reference_entries()) {
      std::string about(meaning_of(entry.page));
      for (const std::string_view tag : entry.summary.tags) about.append(" ").append(tag);
      texts.push_back({std::string(entry.summary.message), std::move(about)});
      for (const KnownWording& wording : entry.wordings) {
        texts.push_back({std::string(wording.text)});
      }
    }
    return texts;
  }

  /// The first section of a page, which says what the error is about.
  static std::string_view meaning_of(std::string_view page) {
    constexpr std::string_view heading = "## What it means";
    const std::size_t start = page.find(heading);
    if (start == std::string_view::npos) return {};
    page.remove_prefix(start + heading.size());
    return page.substr(0, page.find("\n## "));
  }
};

/// A match with what decides its place beside others of score 1.
struct Ranked {
  std::size_t entry = 0;
  bool named = false;   ///< by code, slug or id
  bool raised = false;  ///< on a line that starts with an exception's class, not on one around it
  bool whole = false;
  bool own_words = true;
  bool mentioned = false;  ///< the text around it names the record's library, as tracebacks do
  std::size_t weight = 0;
  double rank = 0;  ///< as the score, but less for a pattern that is mostly placeholders
  Match match;
};

bool better(const Ranked& a, const Ranked& b) {
  const auto key = [](const Ranked& r) {
    return std::tuple(r.rank, r.named, r.raised, r.weight, r.whole, r.own_words, r.mentioned);
  };
  return key(a) != key(b) ? key(a) > key(b) : a.entry < b.entry;
}

// "{argument} must have shape {limit}" recognises every such sentence, so a record whose words are
// those of the sentence may be nearer: fixed text then counts by its part of the whole. One long
// word, such as a path, is a value and not a sentence.
double pattern_rank(std::size_t weight, const std::vector<std::string>& captures) {
  if (weight >= telling_weight) return 1;
  std::size_t captured = 0;
  for (const std::string& capture : captures) {
    const auto letters = static_cast<std::size_t>(
        std::ranges::count_if(capture, [](unsigned char c) { return std::isalnum(c) != 0; }));
    captured += capture.find(' ') != std::string::npos ? letters : std::min(letters, longest_value);
  }
  const auto fixed = static_cast<double>(weight);
  return 0.4 + 0.6 * fixed / (fixed + static_cast<double>(captured));
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
        ranked.rank = 1;
      }
    }
  }

  void by_pattern() {
    for (const Candidate& candidate : candidates_) {
      const std::string lowered = lower_case(candidate.text);
      for (const Matcher::Line& line : Matcher::get().lines) {
        Ranked& ranked = found_[line.entry];
        if (ranked.weight >= line.pattern.weight()) continue;
        auto found = line.pattern.find_in(candidate.text, lowered);
        if (!found) {
          if (!candidate.joined) by_part(ranked, line.pattern.part_found_in(lowered));
          continue;
        }
        ranked.weight = line.pattern.weight();
        ranked.whole = found->whole;
        ranked.raised = ranked.raised || (candidate.raised && !candidate.joined);
        ranked.own_words = line.own_words;
        ranked.rank = std::max(ranked.rank, pattern_rank(ranked.weight, found->captures));
        ranked.match.score = 1;
        ranked.match.placeholders = line.pattern.names();
        ranked.match.captures = std::move(found->captures);
      }
    }
  }

  // Logs cut messages, and versions of a library reword their ends.
  static void by_part(Ranked& ranked, double part) {
    const double score = std::min(0.99, 0.5 + 0.5 * part);
    if (part == 0 || score < ranked.rank) return;
    ranked.match.score = std::max(ranked.match.score, score);
    ranked.rank = score;
  }

  void by_words() {
    const bool any_raised = std::ranges::any_of(candidates_, &Candidate::raised);
    std::size_t looked_at = 0;
    for (const Candidate& candidate : candidates_) {
      // Beside a line that starts with an exception's class the others are its surroundings.
      const double share = any_raised && !candidate.raised ? surroundings_share : 1;
      if (share < 1 && ++looked_at > nearest_lines) continue;
      score_words(candidate.text, share);
      // "Error in model execution (...): the message": wrappers put their own words in front.
      const std::size_t colon = candidate.text.rfind(": ");
      if (candidate.raised && colon != std::string::npos) {
        score_words(std::string_view(candidate.text).substr(colon + 2), share);
      }
    }
  }

  void score_words(std::string_view text, double share) {
    const Matcher& matcher = Matcher::get();
    const std::vector<double> scores = matcher.index.scores(text);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      Ranked& ranked = found_[matcher.lines[i].entry];
      // Never 1: that says the very message was recognised.
      const double score = std::min(0.99, share * scores[i]);
      ranked.match.score = std::max(ranked.match.score, score);
      if (score <= ranked.rank) continue;
      ranked.rank = score;
      ranked.own_words = matcher.lines[i].own_words;
    }
  }

  std::vector<Candidate> candidates_;
  std::vector<Ranked> found_;
};

}  // namespace

std::vector<Match> find_records(std::string_view text, std::size_t limit) {
  return Search(text).best(limit);
}

}  // namespace packattn
