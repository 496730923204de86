// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace packattn {

/// A message pattern such as "{argument} decreases at {position}: {value}". White space counts as
/// one space, letters match in either case; a placeholder stands for at least one character.
class Pattern {
 public:
  explicit Pattern(std::string_view source);

  struct Found {
    bool whole = false;                 ///< the pattern covers the text from end to end
    std::vector<std::string> captures;  ///< one for each name
  };
  /// Where the pattern occurs in `text`, which is a collapsed line; `lowered` is its lower_case.
  std::optional<Found> find_in(std::string_view text, std::string_view lowered) const;

  /// The part of the fixed text, 0 .. 1, that occurs in `lowered` piece by piece, each from its
  /// start: what a cut or reworded message leaves of it. 0 if that is too little to say anything.
  double part_found_in(std::string_view lowered) const;

  const std::vector<std::string>& names() const { return names_; }
  /// Letters and digits outside placeholders: how much a match says.
  std::size_t weight() const { return weight_; }

 private:
  std::optional<Found> find_at(std::string_view text, std::string_view lowered,
                               std::size_t start) const;
  bool plausible(const std::vector<std::string>& captures) const;

  std::vector<std::string> literals_;  ///< one more than names; lower case
  std::vector<std::string> names_;
  std::size_t weight_ = 0;
};

}  // namespace packattn
