// SPDX-License-Identifier: Apache-2.0
#include "errors/reference.h"

#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "errors/catalogue.h"
#include "errors/fault_list.h"

namespace packattn {
namespace {

TEST(Reference, SummariesAgreeWithTheirDocuments) {
  std::set<std::string_view> ids;
  for (const RecordSummary& summary : records()) {
    EXPECT_TRUE(ids.insert(summary.id).second) << summary.id;
    const auto document = nlohmann::json::parse(record_json(summary.id));
    const auto& record = document.at("record");
    EXPECT_EQ(record.at("id"), summary.id);
    EXPECT_EQ(record.at("repo"), summary.repo);
    EXPECT_EQ(record.at("slug"), summary.slug);
    EXPECT_EQ(record.at("messagePattern"), summary.message);
    EXPECT_EQ(record.at("severity"), summary.severity);
    EXPECT_EQ(record.at("tags").size(), summary.tags.size());
    EXPECT_EQ(record.at("errorCode").is_null(), summary.code.empty());
    EXPECT_FALSE(record_page(summary.id).empty());
  }
}

TEST(Reference, OwnRecordsComeFirstInOrderWithTheCataloguesMessage) {
  std::string_view last = "PA0000";
  for (const RecordSummary& summary : records()) {
    if (summary.code.empty()) {
      last = "PA9999";  // no code of ours may follow
      continue;
    }
    EXPECT_LT(last, summary.code);
    last = summary.code;
    const auto code = static_cast<Code>(std::stoi(std::string(summary.code.substr(2))));
    EXPECT_EQ(catalogue_entry(code).message, summary.message);
  }
}

TEST(Reference, UnknownIdsGiveNothing) {
  EXPECT_TRUE(record_json("").empty());
  EXPECT_TRUE(record_json("0123456789abcdef").empty());
  EXPECT_TRUE(record_page("PA2007").empty());
}

TEST(Reference, AFaultShowsOtherLibrariesWordsFilledIn) {
#define PACKATTN_CODE(number, id, ...)                                                           \
  for (const KnownWording& known : known_wordings(Code::id)) {                                   \
    const Fault fault = make_fault(Code::id, {"ARG", "POS", "VAL", "LIM", {}});                  \
    const std::string text = fill_template(known.text, fault);                                   \
    EXPECT_EQ(text.find('{'), std::string::npos) << text;                                        \
    EXPECT_THAT(render(fault),                                                                   \
                testing::HasSubstr("\n  = " + std::string(known.library) + ": " + text + "\n")); \
  }
#include "packattn/catalogue.def"
#undef PACKATTN_CODE
}

}  // namespace
}  // namespace packattn
