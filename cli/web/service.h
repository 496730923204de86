// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace packattn::cli {

struct WebAnswer {
  int status = 200;
  std::string type = {};            ///< of the content
  std::string body = {};            ///< unless `file` is given
  std::filesystem::path file = {};  ///< whose content is the body
  std::string location = {};        ///< of a redirection
};

/// Looks up a parameter of a query; null if it was not given.
using WebQuery = std::function<std::optional<std::string>(const std::string& name)>;

/// What is served under each path: the files of a site, and the error reference's interface, which
/// needs no site.
///
///   /api/errors           summaries of all records; ?tag=, ?repo= and ?severity= filter them
///   /api/errors/<id>      the document of a record, by id or code
///   /api/errors.json      all documents
///   /api/explain?q=text   what `packattn explain --json` finds
class WebService {
 public:
  /// `site` is a folder as ./x site makes it; without it only the interface is there.
  explicit WebService(std::optional<std::filesystem::path> site);

  /// `path` is decoded and starts with a slash.
  WebAnswer answer(std::string_view path, const WebQuery& query) const;

 private:
  WebAnswer file(std::string_view path) const;

  std::filesystem::path site_;  ///< canonical; empty if there is none
};

}  // namespace packattn::cli
