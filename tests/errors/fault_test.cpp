// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "errors/catalogue.h"
#include "errors/fault_list.h"

namespace packattn {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

Fault decrease() {
  return make_fault(Code::boundaries_decrease, {.argument = "cu_seqlens_q",
                                                .position = "index 3",
                                                .value = "12 then 5",
                                                .note = "4 sequences, 20 query tokens"});
}

TEST(Fault, MessageAndHelpComeFromTheCatalogue) {
  const Fault fault = decrease();
  EXPECT_EQ(fault.message, "cu_seqlens_q decreases at index 3: 12 then 5");
  EXPECT_THAT(fault.help, HasSubstr("build cu_seqlens_q as the cumulative sum"));
}

TEST(Fault, FieldsAreNotReadAsTemplates) {
  const Fault fault = make_fault(
      Code::tensor_device,
      {.argument = "{limit}", .position = "{argument}", .value = "{{value}}", .limit = "cpu"});
  EXPECT_EQ(fault.message, "{limit} is on {{value}}, but {argument} is on cpu");
}

TEST(Fault, StaysReadableWhateverItsFieldsHold) {
  const Fault fault = make_fault(Code::tensor_dtype, {.argument = "\x1b[31mq\n",
                                                      .value = std::string(999, 'x') + "\u00e9z",
                                                      .limit = "fp32\t\x7f"});
  EXPECT_EQ(fault.argument, "\\x1b[31mq\\n");
  EXPECT_EQ(fault.value, std::string(999, 'x') + "...") << "no half of a character";
  EXPECT_EQ(fault.limit, "fp32\\t\\x7f");
  std::string note;
  note.resize(10'000'000, 'n');
  const Fault long_note = make_fault(Code::tensor_dtype, {.argument = "q", .note = note});
  EXPECT_LT(render(long_note).size(), 2000U);
}

TEST(Fault, OtherBracesStay) {
  EXPECT_EQ(fill_template("{name} {argument}{", decrease()), "{name} cu_seqlens_q{");
}

TEST(Fault, RendersLikeACompiler) {
  EXPECT_THAT(render(decrease()), testing::StartsWith("error[PA2007]: cu_seqlens_q decreases at "
                                                      "index 3: 12 then 5\n"
                                                      "  = note: 4 sequences, 20 query tokens\n"
                                                      "  = help: build cu_seqlens_q as"));
  EXPECT_THAT(render(decrease()), EndsWith("\n  explain: packattn explain PA2007"));
}

TEST(Fault, WithoutNoteThereIsNoNoteLine) {
  const Fault fault = make_fault(Code::cuda_absent, {.argument = "q", .value = "cuda:0"});
  EXPECT_THAT(render(fault), testing::Not(HasSubstr("note:")));
}

TEST(Fault, SeveralAreRenderedInOrderAndCounted) {
  const std::vector<Fault> faults{decrease(), make_fault(Code::internal, {})};
  const std::string text = render(faults);
  EXPECT_LT(text.find("PA2007"), text.find("PA9001"));
  EXPECT_THAT(text, EndsWith("\n\n2 faults in this call"));
  EXPECT_EQ(render(std::vector<Fault>{decrease()}), render(decrease()));
}

TEST(FaultList, ListsTheFirstOfACodeAndCountsTheOthers) {
  FaultList list;
  for (int i = 0; i < 40; ++i) {
    list.add(Code::slot_range, {.argument = "slots",
                                .position = "index " + std::to_string(i),
                                .value = "-2",
                                .limit = "0 to 4"});
    if (i % 10 == 0) list.add(Code::tensor_missing, {.argument = "q", .limit = "[B, T, H, K]"});
  }
  FaultList joined;
  joined.add(Code::slot_range, {.argument = "slots", .position = "index 99"});
  joined.add(std::move(list).take());
  const std::vector<Fault> faults = std::move(joined).take();
  ASSERT_EQ(faults.size(), FaultList::most_of_a_code + 4);
  EXPECT_EQ(count(faults), 45U);
  std::uint64_t more = 0;
  for (const Fault& fault : faults) {
    more += fault.more;
    if (fault.more > 0) {
      EXPECT_EQ(fault.position, "index 14") << "the last one listed";
    }
  }
  EXPECT_EQ(more, 25U);
  const std::string text = render(faults);
  EXPECT_THAT(text, HasSubstr("\n  = and 25 more of PA6008"));
  EXPECT_THAT(text, EndsWith("\n\n45 faults in this call"));
  EXPECT_THAT(to_json(faults), HasSubstr("\"more\":25"));
}

TEST(Fault, AdviceThatIsTheSameStandsOnce) {
  const auto wrong = [](std::string argument) {
    return make_fault(Code::batch_not_one,
                      {.argument = std::move(argument), .value = "2", .limit = "1"});
  };
  const std::string text = render(std::vector<Fault>{wrong("q"), wrong("k"), decrease()});
  EXPECT_THAT(text, HasSubstr("error[PA6001]: k has batch size 2, but with boundaries it has to be "
                              "1\n\nerror[PA2007]"));
  EXPECT_EQ(text.find("explain PA6001"), text.rfind("explain PA6001"));
  EXPECT_THAT(text, HasSubstr("explain PA2007"));
}

TEST(Fault, JsonHasEveryField) {
  const auto json = nlohmann::json::parse(to_json(std::vector<Fault>{decrease()}));
  ASSERT_EQ(json.size(), 1U);
  EXPECT_EQ(json[0]["code"], "PA2007");
  EXPECT_EQ(json[0]["argument"], "cu_seqlens_q");
  EXPECT_EQ(json[0]["position"], "index 3");
  EXPECT_EQ(json[0]["value"], "12 then 5");
  EXPECT_EQ(json[0]["limit"], "");
  EXPECT_EQ(json[0]["message"], "cu_seqlens_q decreases at index 3: 12 then 5");
  EXPECT_EQ(json[0]["note"], "4 sequences, 20 query tokens");
  EXPECT_FALSE(json[0]["help"].get<std::string>().empty());
}

TEST(Fault, JsonTakesANameInAnyEncoding) {
  const std::vector<Fault> faults{make_fault(Code::option_unknown, {.argument = "\xff\xfe"})};
  EXPECT_TRUE(nlohmann::json::accept(to_json(faults)));
}

TEST(Error, CarriesItsFaultsAndTheirText) {
  try {
    fail(Code::boundaries_start, {.argument = "cu_seqlens_k", .value = "1", .limit = "0"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::boundaries_start);
    EXPECT_EQ(error.faults().size(), 1U);
    EXPECT_THAT(error.what(), HasSubstr("cu_seqlens_k starts at 1, but has to start at 0"));
  }
}

TEST(Error, WithoutFaultsIsAnInternalOne) {
  const Error error({});
  EXPECT_EQ(error.code(), Code::internal);
}

TEST(FaultList, CollectsAndThrowsAllAtOnce) {
  FaultList list;
  EXPECT_TRUE(list.empty());
  EXPECT_NO_THROW(std::move(list).throw_if_any());
  list = {};
  list.add(Code::boundaries_empty, {.argument = "cu_seqlens_q"});
  list.add({decrease(), decrease()});
  EXPECT_FALSE(list.empty());
  try {
    std::move(list).throw_if_any();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.faults().size(), 3U);
    EXPECT_EQ(error.code(), Code::boundaries_empty);
  }
}

TEST(Catalogue, EveryTemplateIsFilledAndOneLine) {
#define PACKATTN_CODE(number, id, ...)                                                     \
  {                                                                                        \
    const Fault fault = make_fault(Code::id, {"A", "P", "V", "L", "N"});                   \
    EXPECT_EQ(code_id(fault.code), "PA" #number);                                          \
    EXPECT_EQ(catalogue_entry(Code::id).name, #id);                                        \
    for (const std::string& text : {fault.message, fault.help}) {                          \
      EXPECT_FALSE(text.empty()) << #number;                                               \
      EXPECT_EQ(text.find_first_of("{}\n"), std::string::npos) << #number << ": " << text; \
    }                                                                                      \
  }
#include "packattn/catalogue.def"
#undef PACKATTN_CODE
}

}  // namespace
}  // namespace packattn
