// SPDX-License-Identifier: Apache-2.0
#include "reference_json.h"

#include <algorithm>

namespace packattn::cli {

using nlohmann::ordered_json;

bool RecordFilter::takes(const RecordSummary& record) const {
  const bool tagged = tag.empty() || std::ranges::find(record.tags, tag) != record.tags.end();
  const bool of_repo = record.repo.find(repo) != std::string_view::npos;
  return tagged && of_repo && (severity.empty() || record.severity == severity);
}

ordered_json summary_json(const RecordSummary& record) {
  return {{"id", record.id},
          {"errorCode", record.code.empty() ? ordered_json(nullptr) : ordered_json(record.code)},
          {"repo", record.repo},
          {"slug", record.slug},
          {"errorMessage", record.message},
          {"severity", record.severity},
          {"tags", record.tags}};
}

ordered_json matches_json(std::span<const Match> matches) {
  auto list = ordered_json::array();
  for (const Match& match : matches) {
    ordered_json captures = ordered_json::object();
    for (std::size_t i = 0; i < match.captures.size(); ++i) {
      captures[match.placeholders[i]] = match.captures[i];
    }
    list.push_back({{"score", match.score},
                    {"captures", captures},
                    {"document", ordered_json::parse(record_json(match.id))}});
  }
  return list;
}

}  // namespace packattn::cli
