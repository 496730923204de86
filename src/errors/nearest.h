// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace packattn {

/// Documents ranked by the words that they share with a text; rare words count more.
class NearestIndex {
 public:
  explicit NearestIndex(const std::vector<std::string>& documents);

  /// For each document 0 .. 1; 1 for the same set of words.
  std::vector<double> scores(std::string_view text) const;

 private:
  struct Word {
    double weight = 0;                   ///< ln(1 + documents / documents with the word)
    std::vector<std::size_t> documents;  ///< ascending
  };
  std::unordered_map<std::string, Word> words_;
  std::vector<double> totals_;  ///< sum of the weights of a document's words
  double unknown_weight_ = 0;   ///< of a word that no document has
};

}  // namespace packattn
