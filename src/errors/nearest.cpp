// SPDX-License-Identifier: Apache-2.0
#include "errors/nearest.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "errors/log_text.h"

namespace packattn {
namespace {

// "cu_seqlens_q must be 1D" -> cu_seqlens_q cu seqlens must be 1d. Numbers are values, not words.
std::set<std::string> words_of(std::string_view text) {
  std::set<std::string> words;
  std::string word;
  const auto add = [&](const std::string& candidate) {
    if (candidate.size() > 1 &&
        !std::ranges::all_of(candidate, [](unsigned char c) { return std::isdigit(c) != 0; })) {
      words.insert(candidate);
    }
  };
  const auto finish = [&] {
    add(word);
    for (std::size_t start = 0; start < word.size();) {
      const std::size_t end = std::min(word.find('_', start), word.size());
      add(word.substr(start, end - start));
      start = end + 1;
    }
    word.clear();
  };
  for (const char c : lower_case(text)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') word += c;
    else finish();
  }
  finish();
  return words;
}

}  // namespace

NearestIndex::NearestIndex(const std::vector<std::string>& documents)
    : totals_(documents.size(), 0.0) {
  for (std::size_t i = 0; i < documents.size(); ++i) {
    for (const std::string& word : words_of(documents[i])) words_[word].documents.push_back(i);
  }
  const auto count = static_cast<double>(documents.size());
  unknown_weight_ = std::log(1 + count);
  for (auto& [text, word] : words_) {
    word.weight = std::log(1 + count / static_cast<double>(word.documents.size()));
    for (const std::size_t document : word.documents) totals_[document] += word.weight;
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
    for (const std::size_t document : found->second.documents) {
      shared[document] += found->second.weight;
    }
  }
  for (std::size_t i = 0; i < shared.size(); ++i) {
    if (shared[i] > 0) shared[i] /= std::sqrt(total * totals_[i]);
  }
  return shared;
}

}  // namespace packattn
