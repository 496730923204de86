// SPDX-License-Identifier: Apache-2.0
#include "errors/reference.h"

#include <algorithm>
#include <string>
#include <vector>

namespace packattn {

const ReferenceEntry* find_entry(std::string_view id) {
  const auto entries = reference_entries();
  const auto found =
      std::ranges::find(entries, id, [](const ReferenceEntry& entry) { return entry.summary.id; });
  return found == entries.end() ? nullptr : &*found;
}

std::span<const KnownWording> known_wordings(Code code) {
  const std::string wanted = code_id(code);
  for (const ReferenceEntry& entry : reference_entries()) {
    if (entry.summary.code == wanted) return entry.wordings;
  }
  return {};
}

std::span<const RecordSummary> records() {
  static const std::vector<RecordSummary> summaries = [] {
    std::vector<RecordSummary> list;
    for (const ReferenceEntry& entry : reference_entries()) list.push_back(entry.summary);
    return list;
  }();
  return summaries;
}

std::string_view record_json(std::string_view id) {
  const ReferenceEntry* entry = find_entry(id);
  return entry ? entry->json : std::string_view{};
}

std::string_view record_page(std::string_view id) {
  const ReferenceEntry* entry = find_entry(id);
  return entry ? entry->page : std::string_view{};
}

}  // namespace packattn
