// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "packattn/error.h"

namespace packattn::cli {

/// Which records a list has; empty fields take every one.
struct RecordFilter {
  std::string tag;
  std::string repo;  ///< or a part of its name
  std::string severity;

  bool takes(const RecordSummary& record) const;
};

/// What an index shows of a record.
nlohmann::ordered_json summary_json(const RecordSummary& record);

/// Matches with their scores, captures and documents.
nlohmann::ordered_json matches_json(std::span<const Match> matches);

}  // namespace packattn::cli
