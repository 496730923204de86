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

/// Without what loggers and interpreters put in front of a message: times, levels, [tags], file and
/// line, exception classes.
std::string_view without_prefix(std::string_view line);

/// The pieces of a pasted text that may be a message, collapsed and without prefixes: its lines,
/// and each joined with up to three that follow, which a log may have wrapped it into. Last line
/// first, because a traceback ends with the error.
std::vector<std::string> candidate_messages(std::string_view text);

}  // namespace packattn
