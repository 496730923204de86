// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "packattn/error.h"

#include "errors/log_text.h"
#include "errors/nearest.h"
#include "errors/pattern.h"

namespace packattn {
namespace {

using ::testing::ElementsAre;

std::optional<Pattern::Found> find(std::string_view pattern, std::string_view text) {
  return Pattern(pattern).find_in(text, lower_case(text));
}

TEST(Pattern, CapturesWhatPlaceholdersStandFor) {
  const auto found = find("{argument} decreases at {position}: {value}",
                          "cu_seqlens_q decreases at index 3: 12 then 5");
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->whole);
  EXPECT_THAT(found->captures, ElementsAre("cu_seqlens_q", "index 3", "12 then 5"));
}

TEST(Pattern, LettersMatchInEitherCaseAndCapturesKeepTheirs) {
  const auto found = find("expected {name} to be A tensor", "Expected A_log To Be a tensor");
  ASSERT_TRUE(found);
  EXPECT_THAT(found->captures, ElementsAre("A_log"));
}

TEST(Pattern, WhiteSpaceOfThePatternCountsAsOneSpace) {
  EXPECT_TRUE(find("shapes differ:\n  query:  {q}", "shapes differ: query: [1, 2]"));
}

TEST(Pattern, TakesOneWordAheadOfItsFirstFixedText) {
  const auto found = find("{name} must be non-decreasing",
                          "worker 3 died while serving: cu_seqlens_k must be non-decreasing");
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->whole);
  EXPECT_THAT(found->captures, ElementsAre("cu_seqlens_k"));
}

TEST(Pattern, OccursInsideALine) {
  const auto found = find("batch size is expected to be 1 rather than {n} when",
                          "oops, the batch size is expected to be 1 rather than 4 when using x");
  ASSERT_TRUE(found);
  EXPECT_THAT(found->captures, ElementsAre("4"));
}

TEST(Pattern, SaysHowMuchOfItACutMessageHas) {
  const Pattern pattern(
      "query and key should have the same dtype, but got query.dtype: {q} and {k}");
  EXPECT_NEAR(pattern.part_found_in("query and key should have the same dtype, but got que"), 0.74,
              0.1);
  EXPECT_EQ(pattern.part_found_in("query and key"), 0.0);  // too little
  EXPECT_EQ(pattern.part_found_in(""), 0.0);
}

TEST(Pattern, RefusesOtherText) {
  EXPECT_FALSE(find("{name} must be non-decreasing", "must be non-decreasing"));  // no name
  EXPECT_FALSE(find("{a} is {b}, but {c} is {d}",
                    "this sentence that somebody wrote is long, but that other one is too"));
  EXPECT_FALSE(find("{argument}: {value}", "a: b"));  // fixed text that fits everything
  EXPECT_FALSE(find("abcdefgh", ""));
}

TEST(LogText, PrefixesAreStripped) {
  for (const std::string line : {
           "ValueError: cu_seqlens_q is wrong",
           "torch.cuda.OutOfMemoryError: cu_seqlens_q is wrong",
           "packattn.Error: error[PA2007]: cu_seqlens_q is wrong",
           "2026-08-28 05:10:05,995 ERROR cu_seqlens_q is wrong",
           "2026-08-28T05:10:05.995Z [rank0]: ERROR: cu_seqlens_q is wrong",
           "[2026-08-28 05:10:05 TP0] RuntimeError: cu_seqlens_q is wrong",
           "(EngineCore_0 pid=4711) ERROR 08-28 05:10:05 [core.py:718] ValueError: cu_seqlens_q is "
           "wrong",
           "E   ValueError: cu_seqlens_q is wrong",
           "kda.py:154: ValueError: cu_seqlens_q is wrong",
           "  what():  cu_seqlens_q is wrong",
           "> > cu_seqlens_q is wrong",
       }) {
    EXPECT_EQ(without_prefix(collapsed(line)), "cu_seqlens_q is wrong") << line;
  }
}

TEST(LogText, WhatIsNoPrefixStays) {
  for (const std::string line : {"Error", "[3, 4] is the shape", "error: x", ""}) {
    const std::string_view rest = without_prefix(line);
    EXPECT_TRUE(std::string_view(line).ends_with(rest)) << line;
  }
  EXPECT_EQ(without_prefix("errors happen"), "errors happen");
}

TEST(LogText, CandidatesJoinWrappedLinesLastFirst) {
  EXPECT_THAT(candidate_messages("a b\n  c\td \r\n\n"),
              ElementsAre(Candidate{"c d"}, Candidate{"a b"},
                          Candidate{.text = "a b c d", .joined = true}));
}

TEST(LogText, AnExceptionsClassMarksTheMessage) {
  const auto candidates =
      candidate_messages("ERROR 08-06 20:57:06 [core.py:718] ValueError: a b\nnothing raised");
  ASSERT_EQ(candidates.size(), 3U);
  EXPECT_FALSE(candidates[0].raised);
  EXPECT_EQ(candidates[1], (Candidate{.text = "a b", .raised = true}));
}

TEST(LogText, ThePrefixOfEachLineOfAMessageIsStripped) {
  const auto candidates =
      candidate_messages("[rank0]: ValueError: not the same dtype\n[rank0]:   query.dtype: half");
  EXPECT_EQ(candidates.back().text, "not the same dtype query.dtype: half");
  // Only a prefix that the first line has too is one.
  EXPECT_EQ(candidate_messages("shapes differ:\n[3, 4] and [5]").back().text,
            "shapes differ: [3, 4] and [5]");
}

TEST(LogText, HostileTextIsBounded) {
  for (const char c : {'[', '(', ':', ' ', 'e', '\n', '\0', '\xff'}) {
    EXPECT_LE(candidate_messages(std::string(1 << 20, c)).size(), 256U);
    EXPECT_NO_THROW(find_records(std::string(1 << 20, c)));
  }
}

TEST(Nearest, RareWordsDecide) {
  const NearestIndex index({{"q and k have other dtypes"}, {"q and k have other devices"}});
  const auto scores = index.scores("other dtypes of q_cache and k");
  EXPECT_GT(scores[0], scores[1]);
  EXPECT_NEAR(index.scores("other dtypes and have 17")[0], 1.0, 1e-9);
  EXPECT_THAT(index.scores("zzz"), ElementsAre(0.0, 0.0));
}

bool first_finds(const std::string& text, std::string_view id) {
  const std::vector<Match> matches = find_records(text);
  if (matches.empty() || matches.front().score != 1) return false;
  if (matches.front().id == id) return true;
  // Two libraries, or two codes, can have one wording: then the record is among the first.
  for (const Match& match : matches) {
    if (match.id == id && match.score == 1) return true;
  }
  return false;
}

std::string with_placeholders_filled(std::string_view pattern) {
  std::string text;
  bool inside = false;
  for (const char c : pattern) {
    if (c == '{') text += "some_7";
    if (c == '{' || c == '}') inside = c == '{';
    else if (!inside) text += c;
  }
  return text;
}

TEST(FindRecords, EveryRecordByCodeSlugIdAndMessage) {
  for (const RecordSummary& record : records()) {
    EXPECT_TRUE(first_finds(std::string(record.id), record.id));
    EXPECT_TRUE(first_finds(std::string(record.slug), record.id)) << record.slug;
    if (!record.code.empty()) {
      EXPECT_TRUE(first_finds(std::string(record.code), record.id)) << record.code;
      EXPECT_TRUE(first_finds("see error[" + std::string(record.code) + "]: x", record.id));
    }
    if (Pattern(record.message).weight() < 7) continue;
    const std::string message = with_placeholders_filled(record.message);
    EXPECT_TRUE(first_finds("2026-08-28 05:10:05 ERROR ValueError: " + message, record.id))
        << message;
  }
}

TEST(FindRecords, TheLibraryOfATracebackComesFirst) {
  const std::string message =
      "ValueError: The batch size is expected to be 1 rather than 4 when "
      "using `cu_seqlens`.Please flatten variable-length inputs before "
      "processing.";
  for (const std::string repo : {"sgl-project/sglang", "fla-org/flash-linear-attention"}) {
    const std::string file = "/opt/" + repo.substr(repo.find('/') + 1) + "/fla/kda.py";
    const auto matches = find_records("File \"" + file + "\", line 154, in forward\n" + message);
    ASSERT_FALSE(matches.empty());
    EXPECT_NE(record_json(matches.front().id).find(repo), std::string_view::npos) << repo;
    EXPECT_THAT(matches.front().captures, ElementsAre("4"));
  }
}

TEST(Nearest, WordsOfThePageCountLess) {
  const NearestIndex index({{"a sink is given", "flash only"}, {"a flash is given", "sink only"}});
  const auto scores = index.scores("sinks");
  EXPECT_GT(scores[0], scores[1]);
  EXPECT_GT(scores[1], 0.0);
}

TEST(FindRecords, NothingForOtherText) {
  EXPECT_TRUE(find_records("").empty());
  EXPECT_TRUE(find_records("PA0000").empty());
  EXPECT_TRUE(find_records("0123456789abcdef").empty());
  EXPECT_TRUE(find_records("zebras graze quietly").empty());
}

TEST(FindRecords, LimitIsKept) {
  EXPECT_LE(find_records("cu_seqlens_q has a wrong shape and dtype", 2).size(), 2U);
  EXPECT_TRUE(find_records("cu_seqlens_q has a wrong shape and dtype", 0).empty());
}

}  // namespace
}  // namespace packattn
