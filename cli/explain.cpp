// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "fault.h"
#include "reference_json.h"

namespace packattn::cli {
namespace {

using nlohmann::ordered_json;

std::string text_of(const ExplainRequest& request) {
  if (!request.words.empty()) return fmt::format("{}", fmt::join(request.words, " "));
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

const RecordSummary& record_of(const Match& match) {
  for (const RecordSummary& record : records()) {
    if (record.id == match.id) return record;
  }
  fail(Code::internal, {.argument = "explain", .value = "a match without a record"});
}

std::string title_of(const Match& match) {
  const RecordSummary& record = record_of(match);
  return fmt::format("{:<18} {}  {}", record.code.empty() ? record.id : record.code, record.message,
                     record.code.empty() ? record.repo : "");
}

}  // namespace

int explain_command(const ExplainRequest& request) {
  const std::string text = text_of(request);
  const std::vector<Match> matches = find_records(text);
  if (matches.empty()) {
    const std::string shown = text.size() > 80 ? text.substr(0, 80) + "..." : text;
    fail(Code::record_unknown, {.value = fmt::format("\"{}\"", shown)});
  }
  if (request.json) {
    fmt::print("{}\n",
               matches_json(matches).dump(2, ' ', false, ordered_json::error_handler_t::replace));
    return exit_ok;
  }

  const Match& best = matches.front();
  if (best.score < 1) fmt::print("No record has this message; the nearest by its words:\n\n");
  fmt::print("{}", record_page(best.id));
  for (std::size_t i = 0; i < best.captures.size(); ++i) {
    if (i == 0) fmt::print("\nIn your message:\n");
    fmt::print("  {} = {}\n", best.placeholders[i], best.captures[i]);
  }
  for (std::size_t i = 1; i < matches.size(); ++i) {
    if (i == 1) fmt::print("\nOther records that are near:\n");
    fmt::print("  {}\n", title_of(matches[i]));
  }
  return exit_ok;
}

int errors_command(const ErrorsRequest& request) {
  auto list = ordered_json::array();
  for (const RecordSummary& record : records()) {
    if (!request.filter.takes(record)) continue;
    if (request.json) {
      list.push_back(ordered_json::parse(record_json(record.id)));
      continue;
    }
    const std::string_view name = record.code.empty() ? record.id : record.code;
    const std::string repo = record.code.empty() ? fmt::format("  ({})", record.repo) : "";
    fmt::print("{:<18} {}{}\n", name, record.message, repo);
  }
  if (request.json) fmt::print("{}\n", list.dump());
  return exit_ok;
}

}  // namespace packattn::cli
