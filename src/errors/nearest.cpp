// SPDX-License-Identifier: Apache-2.0
#include "errors/nearest.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "errors/log_text.h"

namespace packattn {
namespace {

// How much a word counts that the page has and the message has not.
constexpr double about_share = 0.35;

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// supports, supported -> support: the two ends that the same fault's wordings differ by.
void cut_ending(std::string& word) {
  if (word.size() > 5 && word.ends_with("ed")) word.resize(word.size() - 2);
  else if (word.size() > 3 && word.ends_with('s') && !word.ends_with("ss")) word.pop_back();
}

// "cu_seqlens_q must be 1D" -> cu_seqlens_q cu seqlen must be 1d. Numbers are values, not words.
// Each word once, in order.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  const auto add = [&](std::string candidate) {
    cut_ending(candidate);
    if (candidate.size() > 1 && !std::ranges::all_of(candidate, is_digit)) {
      words.push_back(std::move(candidate));
    }
  };
  const auto finish = [&] {
    if (word.empty()) return;
    add(word);
    for (std::size_t start = 0; word.find('_') != std::string::npos && start < word.size();) {
      const std::size_t end = std::min(word.find('_', start), word.size());
      add(word.substr(start, end - start));
      start = end + 1;
    }
    word.clear();
  };
  for (const char c : lower_case(text)) {
    if ((c >= 'a' && c <= 'z') || is_digit(c) || c == '_') word += c;
    else finish();
  }
  finish();
  std::ranges::sort(words);
  const auto repeated = std::ranges::unique(words);
  words.erase(repeated.begin(), repeated.end());
  return words;
}

}  // namespace

NearestIndex::NearestIndex(const std::vector<NearestDocument>& documents)
    : totals_(documents.size(), 0.0) {
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const std::vector<std::string> message = words_of(documents[i].message);
    for (const std::string& word : message) words_[word].message.push_back(i);
    for (const std::string& word : words_of(documents[i].about)) {
      if (!std::ranges::binary_search(message, word)) words_[word].about.push_back(i);
    }
  }
  const auto count = static_cast<double>(documents.size());
  unknown_weight_ = std::log(1 + count);
  for (auto& [text, word] : words_) {
    const std::size_t having = word.message.size() + word.about.size();
    word.weight = std::log(1 + count / static_cast<double>(having));
    for (const std::size_t document : word.message) totals_[document] += word.weight;
  }
}

std::vector<double> NearestIndex::scores(std::string_view text) const {
  std::vector<double> shared(totals_.size(), 0.0);
  double total = 0;
  for (const std::string& text_word : words_of(text)) {
    const auto found = words_.find(text_word);
    if (found == words_.end()) {
      total += unknown_weight_ / 2;  // names and paths of the reader's program
      continue;
    }
    total += found->second.weight;
    const double weight = found->second.weight;
    for (const std::size_t document : found->second.message) shared[document] += weight;
    for (const std::size_t document : found->second.about) {
      shared[document] += about_share * weight;
    }
  }
  for (std::size_t i = 0; i < shared.size(); ++i) {
    if (shared[i] > 0) shared[i] = std::min(1.0, shared[i] / std::sqrt(total * totals_[i]));
  }
  return shared;
}

}  // namespace packattn
