// SPDX-License-Identifier: Apache-2.0
// Legal calls, spoilt once or twice: each is refused with faults that say what is wrong, or gives
// what the reference gives. Every code that a host can raise has to come up.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "fuzz/mutations.h"
#include "support/compare.h"

namespace packattn::test::fuzz {
namespace {

constexpr int wanted_hits = 20;

struct CodeName {
  Code code;
  const char* name;
};
constexpr CodeName catalogue[] = {
#define PACKATTN_CODE(number, name, ...) {Code::name, #name},
#include "packattn/catalogue.def"
#undef PACKATTN_CODE
};

/// Codes that no call through the C++ interface can raise on a machine of any kind, and why.
const std::map<Code, const char*> exempt = {
    {Code::option_unknown, "an option's name, read by the command line and Python"},
    {Code::gradient_unsupported, "asked of torch tensors by the Python package"},
    {Code::argument_unsupported, "arguments of drop-ins, in the Python package"},
    {Code::file_unreadable, "files"},
    {Code::safetensors_malformed, "files"},
    {Code::tensor_not_in_file, "files"},
    {Code::file_unwritable, "files"},
    {Code::command_line, "command line"},
    {Code::record_unknown, "command line"},
    {Code::port_unavailable, "command line"},
    {Code::internal, "a fault of packattn itself: must not come up"},
};

int number_of_calls() {
  const char* given = std::getenv("PACKATTN_FUZZ_CALLS");
  return given != nullptr ? static_cast<int>(std::strtol(given, nullptr, 10)) : 10000;
}

class Coverage {
 public:
  void count(const std::vector<Fault>& faults) {
    for (const Fault& fault : faults) ++hits_[fault.code];
  }
  int hits(Code code) const {
    const auto found = hits_.find(code);
    return found == hits_.end() ? 0 : found->second;
  }
  void print_and_check() const {
    std::printf("%-8s %-28s %8s\n", "code", "name", "hits");
    for (const auto& [code, name] : catalogue) {
      const auto reason = exempt.find(code);
      std::printf("%-8s %-28s %8d%s%s\n", code_id(code).c_str(), name, hits(code),
                  reason != exempt.end() ? "  exempt: " : "",
                  reason != exempt.end() ? reason->second : "");
      const int needed = reason != exempt.end() ? 0 : wanted_hits;
      EXPECT_GE(hits(code), needed) << name;
    }
    EXPECT_EQ(hits(Code::internal), 0);
  }

 private:
  std::map<Code, int> hits_;
};

/// What was done to the call, for the message of a failure.
struct Spoilt {
  Call call;
  std::string how;
};

/// Half of the mutations go where codes are still missing.
Spoilt spoil(Random& random, const std::vector<Mutation>& mutations, const Coverage& coverage) {
  std::vector<const Mutation*> missing;
  for (const Mutation& m : mutations) {
    if (coverage.hits(m.aim) < wanted_hits) missing.push_back(&m);
  }
  Spoilt spoilt{random_call(random), ""};
  const std::int64_t times = random.between(1, 2);
  for (std::int64_t done = 0; done < times;) {
    const Mutation& m = !missing.empty() && done == 0 && random.chance(0.5)
                            ? *random.pick(missing)
                            : random.pick(mutations);
    Call changed = spoilt.call;
    if (!m.apply(changed, random)) {
      if (done == 0) spoilt.call = random_call(random);  // perhaps another kind of call fits
      continue;
    }
    spoilt.call = std::move(changed);
    spoilt.how += (done++ > 0 ? ", " : "") + m.name;
  }
  return spoilt;
}

void expect_well_worded(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    EXPECT_FALSE(fault.message.empty());
    EXPECT_FALSE(fault.help.empty());
    EXPECT_EQ(fault.message.find('{'), std::string::npos) << fault.message;
  }
}

std::string reference(const Call& call) { return call.op() ? "ref/" + to_string(*call.op()) : ""; }

void expect_equal_to_the_reference(Bench& bench, const Call& call, const Bench::Outcome& actual) {
  Call plain = call;
  plain.implementation = reference(call);
  plain.threads = 1;
  plain.workspace = Call::Workspace::own;
  plain.injection = {.hide_cuda = true};
  const Bench::Outcome expected = bench.run(plain);
  ASSERT_TRUE(expected.faults.empty()) << render(expected.faults);
  for (const auto& [name, values] : expected.outputs) {
    const std::vector<double> reference_values(values.begin(), values.end());
    const auto size = static_cast<std::int64_t>(values.size());
    const auto& mine = actual.outputs.at(name);
    const bool exact =
        call.kind == Kind::merge || call.kind == Kind::pack || call.kind == Kind::unpack;
    // The limits of 16 bits, for small tensors that were rounded once.
    EXPECT_TRUE(exact ? same_bits(mine, values, {size})
                      : close(mine, reference_values, {size}, {.norm = 4e-3, .row = 1}))
        << name;
  }
}

TEST(Fuzz, SpoiltCallsAreRefusedOrRight) {
  std::vector<Mutation> mutations;
  for (const auto& some : {tensor_mutations(), boundary_mutations(), option_mutations(),
                           kda_mutations(), layer_mutations()}) {
    mutations.insert(mutations.end(), some.begin(), some.end());
  }
  const std::uint64_t seed = process_seed();
  const int calls = number_of_calls();
  Bench bench;
  Coverage coverage;
  int refused = 0;
  int ran = 0;
  for (int i = 0; i < calls && !::testing::Test::HasFailure(); ++i) {
    Random random(seed + static_cast<std::uint64_t>(i));
    const Spoilt spoilt = spoil(random, mutations, coverage);
    SCOPED_TRACE("call " + std::to_string(i) + ": " + spoilt.how + "\n" + describe(spoilt.call));
    Bench::Outcome outcome;
    ASSERT_NO_THROW(outcome = bench.run(spoilt.call)) << "an exception that is no packattn::Error";
    coverage.count(outcome.faults);
    if (!outcome.faults.empty()) {
      ++refused;
      expect_well_worded(outcome.faults);
      EXPECT_FALSE(outcome.wrote_after_refusal) << render(outcome.faults);
    } else {
      ++ran;
      EXPECT_FALSE(outcome.touched_foreign_bytes);
      if (!spoilt.call.absurd) expect_equal_to_the_reference(bench, spoilt.call, outcome);
    }
  }
  std::printf("%d calls: %d refused, %d equal to the reference\n", refused + ran, refused, ran);
  if (calls >= 1000) coverage.print_and_check();
}

TEST(Fuzz, CallsThatNobodySpoiltAreAccepted) {
  const std::uint64_t seed = process_seed();
  Bench bench;
  for (int i = 0; i < 300; ++i) {
    Random random(seed + static_cast<std::uint64_t>(i));
    const Call call = random_call(random);
    const Bench::Outcome outcome = bench.run(call);
    ASSERT_TRUE(outcome.faults.empty()) << "call " << i << ": " << render(outcome.faults);
    EXPECT_FALSE(outcome.touched_foreign_bytes) << i;
    expect_equal_to_the_reference(bench, call, outcome);
  }
}

}  // namespace
}  // namespace packattn::test::fuzz
