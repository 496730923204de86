// SPDX-License-Identifier: Apache-2.0
#include "web/service.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "packattn/error.h"

#include "reference_json.h"

namespace packattn::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::string_view json_type = "application/json; charset=utf-8";

std::string content_type(const fs::path& path) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 12> types{{
      {".html", "text/html; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".json", json_type},
      {".map", json_type},
      {".svg", "image/svg+xml"},
      {".png", "image/png"},
      {".ico", "image/x-icon"},
      {".txt", "text/plain; charset=utf-8"},
      {".xml", "application/xml"},
      {".woff2", "font/woff2"},
      {".gz", "application/gzip"},
  }};
  const std::string extension = path.extension().string();
  const auto* const known =
      std::ranges::find(types, extension, &std::pair<std::string_view, std::string_view>::first);
  return std::string(known != types.end() ? known->second : "application/octet-stream");
}

WebAnswer json(const ordered_json& value, int status = 200) {
  return {.status = status,
          .type = std::string(json_type),
          .body = value.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n"};
}

WebAnswer refused(int status, const std::string& why) { return json({{"error", why}}, status); }

WebAnswer explain(const WebQuery& query) {
  const std::string text = query("q").value_or("");
  if (text.empty()) return refused(400, "give a code, an id or a message as ?q=");
  return json({{"query", text}, {"matches", matches_json(find_records(text))}});
}

WebAnswer summaries(const WebQuery& query) {
  const RecordFilter filter{.tag = query("tag").value_or(""),
                            .repo = query("repo").value_or(""),
                            .severity = query("severity").value_or("")};
  auto list = ordered_json::array();
  for (const RecordSummary& record : records()) {
    if (filter.takes(record)) list.push_back(summary_json(record));
  }
  return json(list);
}

WebAnswer one_record(std::string_view name) {
  for (const RecordSummary& record : records()) {
    if (name == record.id || (!record.code.empty() && name == record.code)) {
      return {.type = std::string(json_type), .body = std::string(record_json(record.id)) + "\n"};
    }
  }
  return refused(404, "no record has this id or code");
}

WebAnswer all_records() {
  std::string body;
  for (const RecordSummary& record : records()) {
    body += body.empty() ? '[' : ',';
    body += record_json(record.id);
  }
  return {.type = std::string(json_type), .body = body + "]\n"};
}

// Dot files, drive letters and climbing out have no place in an address of the site.
bool is_clean(std::string_view path) {
  if (!path.starts_with('/')) return false;
  for (std::size_t start = 0; start < path.size();) {
    const std::size_t end = std::min(path.find('/', start + 1), path.size());
    const std::string_view segment = path.substr(start + 1, end - start - 1);
    if (segment.starts_with('.')) return false;
    start = end;
  }
  return std::ranges::none_of(
      path, [](unsigned char c) { return c < 0x20 || c == '\\' || c == ':' || c == 0x7f; });
}

constexpr std::string_view without_site =
    "packattn serve: no site here, only the error reference's interface.\n\n"
    "  /api/errors           summaries of all records (?tag= ?repo= ?severity=)\n"
    "  /api/errors/<id>      one record, by id or code\n"
    "  /api/errors.json      all records\n"
    "  /api/explain?q=text   the records that a message finds\n\n"
    "./x site makes the site; packattn serve --site FOLDER serves it.\n";

}  // namespace

WebService::WebService(std::optional<fs::path> site) {
  std::error_code error;
  if (site) site_ = fs::canonical(*site, error);
}

WebAnswer WebService::answer(std::string_view path, const WebQuery& query) const {
  constexpr std::string_view records_path = "/api/errors/";
  if (path == "/api/explain") return explain(query);
  if (path == "/api/errors" || path == "/api/errors/") return summaries(query);
  if (path == "/api/errors.json") return all_records();
  if (path.starts_with(records_path) && !path.ends_with(".json")) {
    return one_record(path.substr(records_path.size()));
  }
  if (!site_.empty()) return file(path);
  if (path == "/") return {.type = "text/plain; charset=utf-8", .body = std::string(without_site)};
  return refused(404, "no such page; there is no site here");
}

WebAnswer WebService::file(std::string_view path) const {
  WebAnswer missing{.status = 404,
                    .type = "text/html; charset=utf-8",
                    .body = "<!doctype html><title>404</title><p>No such page.",
                    .file = fs::exists(site_ / "404.html") ? site_ / "404.html" : ""};
  if (!is_clean(path)) return missing;
  std::error_code error;
  fs::path found = site_ / fs::path(path.substr(1));
  if (fs::is_directory(found, error)) {
    if (!path.ends_with('/')) {
      return {.status = 301, .type = "text/plain", .location = fmt::format("{}/", path)};
    }
    found /= "index.html";
  }
  // A link inside the site must not lead out of it.
  found = fs::canonical(found, error);
  if (error || !fs::is_regular_file(found, error)) return missing;
  const auto [in_site, _] = std::ranges::mismatch(site_, found);
  if (in_site != site_.end()) return missing;
  return {.type = content_type(found), .file = found};
}

}  // namespace packattn::cli
