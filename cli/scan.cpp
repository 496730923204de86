// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "fault.h"
#include "scan/raise_sites.h"

namespace packattn::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::uintmax_t largest_source = 4U << 20;
constexpr std::size_t context_lines = 18;  // as the records of the reference have
constexpr std::size_t longest_slug = 50;

std::optional<Language> language_of(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".py") return Language::python;
  static constexpr std::array<std::string_view, 10> cpp{".cpp", ".cc",  ".cxx", ".cu",  ".h",
                                                        ".hpp", ".hxx", ".cuh", ".inl", ".inc"};
  if (std::ranges::find(cpp, extension) != cpp.end()) return Language::cpp;
  return {};
}

// What is installed or built beside sources, and never a team's own.
bool skipped_folder(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with('.') || name == "build" || name == "node_modules" ||
         name == "__pycache__" || name == "site-packages";
}

std::vector<fs::path> sources_below(const std::string& folder) {
  std::error_code error;
  if (fs::is_regular_file(folder, error)) return {folder};
  std::vector<fs::path> found;
  fs::recursive_directory_iterator walk(folder, fs::directory_options::skip_permission_denied,
                                        error);
  if (error) fail(Code::file_unreadable, {.argument = folder, .value = error.message()});
  for (const fs::recursive_directory_iterator end; walk != end;) {
    if (walk->is_symlink(error)) walk.disable_recursion_pending();
    else if (walk->is_directory(error)) {
      if (skipped_folder(walk->path())) walk.disable_recursion_pending();
    } else if (walk->is_regular_file(error) && language_of(walk->path())) {
      found.push_back(walk->path());
    }
    walk.increment(error);
    if (error) fail(Code::file_unreadable, {.argument = folder, .value = error.message()});
  }
  std::ranges::sort(found);
  return found;
}

std::optional<std::string> read(const fs::path& path) {
  std::error_code error;
  if (fs::file_size(path, error) > largest_source || error) return {};
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

std::string slug_of(std::string_view message) {
  std::string slug;
  for (const char c : message) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      slug += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!slug.empty() && slug.back() != '-') {
      slug += '-';
    }
  }
  if (slug.size() > longest_slug) {
    const std::size_t word = slug.rfind('-', longest_slug);
    slug.resize(word == std::string::npos || word == 0 ? longest_slug : word);
  }
  while (slug.ends_with('-')) slug.pop_back();
  return slug;
}

ordered_json error_type(std::string_view error_class) {
  if (error_class == "NotImplementedError") return "unsupported";
  for (const std::string_view name : {"MemoryError", "bad_alloc", "OutOfMemoryError"}) {
    if (error_class == name) return "resource";
  }
  for (const std::string_view name : {"ValueError", "TypeError", "AssertionError", "IndexError",
                                      "invalid_argument", "out_of_range", "length_error"}) {
    if (error_class == name) return "validation";
  }
  return nullptr;
}

/// A source with the starts of its lines.
class Source {
 public:
  Source(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {
    for (std::size_t at = 0; at < text_.size(); ++at) {
      if (at == 0 || text_[at - 1] == '\n') starts_.push_back(at);
    }
  }
  const std::string& path() const { return path_; }
  const std::string& text() const { return text_; }
  std::size_t line_of(std::size_t offset) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(starts_, offset) - starts_.begin());
  }
  std::size_t lines() const { return starts_.size(); }
  std::string excerpt(std::size_t first, std::size_t last) const {
    const std::size_t begin = starts_[first - 1];
    const std::size_t end = last < starts_.size() ? starts_[last] : text_.size();
    return text_.substr(begin, end - begin);
  }

 private:
  std::string path_, text_;
  std::vector<std::size_t> starts_;
};

/// The record of the reference with what the source says, and null for what a person has to write.
ordered_json skeleton(const Source& source, const RaiseSite& site, const std::string& repo) {
  const std::size_t line = source.line_of(site.begin);
  const std::size_t first = line > context_lines ? line - context_lines : 1;
  const std::size_t last = std::min(line + context_lines, source.lines());
  const ordered_json none = nullptr;
  const ordered_json record{
      {"id", none},
      {"repo", repo},
      {"slug", slug_of(site.pattern)},
      {"errorCode", none},
      {"errorMessage", site.pattern},
      {"messagePattern", site.pattern},
      {"errorType", error_type(site.error_class)},
      {"errorClass", site.error_class},
      {"httpStatus", site.http_status ? ordered_json(*site.http_status) : none},
      {"severity", site.warning ? "warning" : "error"},
      {"filePath", source.path()},
      {"lineNumber", line},
      {"sourceCode", source.excerpt(first, last)},
      {"sourceCodeStart", first},
      {"sourceCodeEnd", last},
      {"githubUrl", none},
      {"documentation", none},
      {"triggerScenarios", none},
      {"commonSituations", none},
      {"solutions", ordered_json::array()},
      {"exampleFix", none},
      {"handlingStrategy", none},
      {"validationCode", none},
      {"typeGuard", none},
      {"tryCatchPattern", none},
      {"preventionTips", ordered_json::array()},
      {"tags", ordered_json::array()},
      {"backgroundTag", none},
      {"analyzedSha", none},
      {"analyzedAt", none},
      {"schemaVersion", 2}};
  return {{"record", record},
          {"datasetVersion", none},
          {"related", ordered_json::array()},
          {"alsoKnownAs", ordered_json::array()}};
}

std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') line += "\\n";
    else line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return line;
}

}  // namespace

int scan_command(const ScanRequest& request) {
  const fs::path root(request.folder);
  std::string repo = request.repo;
  if (repo.empty()) {
    std::error_code error;
    const fs::path whole = fs::weakly_canonical(root, error);
    repo = (error ? root : whole).filename().string();
  }
  auto list = ordered_json::array();
  std::size_t sites = 0;
  std::size_t unread = 0;
  const std::vector<fs::path> paths = sources_below(request.folder);
  for (const fs::path& path : paths) {
    std::optional<std::string> text = read(path);
    if (!text) {
      ++unread;
      continue;
    }
    const fs::path shown = path == root ? path.filename() : path.lexically_relative(root);
    const Source source(shown.generic_string(), std::move(*text));
    for (const RaiseSite& site : raise_sites(source.text(), *language_of(path))) {
      ++sites;
      if (request.json) {
        list.push_back(skeleton(source, site, repo));
      } else {
        fmt::print("{}:{}: {}: {}\n", source.path(), source.line_of(site.begin), site.error_class,
                   one_line(site.pattern));
      }
    }
  }
  if (request.json) {
    fmt::print("{}\n", list.dump(1, ' ', false, ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{} raise sites in {} sources", sites, paths.size() - unread);
    if (unread > 0) fmt::print("; {} unreadable or larger than 4 MiB left out", unread);
    fmt::print("\n");
  }
  return exit_ok;
}

}  // namespace packattn::cli
