// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace packattn {

/// What is known of one record: its message, and what its page says about it.
struct NearestDocument {
  std::string message;
  std::string about = {};
};

/// Documents ranked by the words that they share with a text; rare words count more, and words that
/// only the page has count less.
class NearestIndex {
 public:
  explicit NearestIndex(const std::vector<NearestDocument>& documents);

  /// For each document 0 .. 1; 1 for the same set of words as its message.
  std::vector<double> scores(std::string_view text) const;

 private:
  struct Word {
    double weight = 0;                 ///< ln(1 + documents / documents with the word)
    std::vector<std::size_t> message;  ///< documents whose message has it, ascending
    std::vector<std::size_t> about;    ///< documents of which only the page has it
  };
  std::unordered_map<std::string, Word> words_;
  std::vector<double> totals_;  ///< sum of the weights of a message's words
  double unknown_weight_ = 0;   ///< of a word that no document has
};

}  // namespace packattn
