// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace packattn {

/// Each run of white space as one space, nothing at the ends.
std::string collapsed(std::string_view text);

/// ASCII only, so that offsets into the text stay what they are.
std::string lower_case(std::string_view text);

/// A line and whether what was taken off it names an exception's class.
struct Unprefixed {
  std::string_view rest;
  bool raised = false;
};
Unprefixed strip_prefix(std::string_view line);

/// Without what loggers and interpreters put in front of a message: times, levels, [tags], file and
/// line, exception classes.
std::string_view without_prefix(std::string_view line);

/// A piece of a pasted text that may be a message.
struct Candidate {
  std::string text;
  bool raised = false;  ///< an exception's class stood in front of it
  bool joined = false;  ///< more than one line

  friend bool operator==(const Candidate&, const Candidate&) = default;
};

/// The candidates of a text, collapsed and without prefixes: its lines, and each joined with up to
/// three that follow, which a log may have wrapped it into. Last line first, because a traceback
/// ends with the error.
std::vector<Candidate> candidate_messages(std::string_view text);

}  // namespace packattn
