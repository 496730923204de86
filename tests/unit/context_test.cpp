// SPDX-License-Identifier: Apache-2.0
// How a call runs: names, workspace, threads, injected faults, one batch used by many threads.
#include <atomic>
#include <limits>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "packattn/packattn.h"

#include "core/select.h"
#include "support/attention_data.h"
#include "support/compare.h"
#include "support/faults.h"
#include "support/kda_data.h"

namespace packattn::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const AttentionCase small{.name = "small", .lengths_q = {5, 0, 70}, .heads_q = 4, .causal = true};
const KdaCase small_kda{.name = "small_kda", .lengths = {5, 0, 70}};

/// Puts the process back as it was, whatever the test does.
struct Injected {
  explicit Injected(const Injection& injection) { inject_faults(injection); }
  ~Injected() { inject_faults({}); }
  Injected(const Injected&) = delete;
  Injected& operator=(const Injected&) = delete;
};

TEST(Threads, OnlyAsManyAsTheWorkKeepsBusyWithinTheLimit) {
  const int processors = resolve_threads(0, 1e15);
  EXPECT_GE(processors, 1);
  EXPECT_EQ(resolve_threads(0, 1e6), 1) << "waking a second thread takes longer than this work";
  EXPECT_EQ(resolve_threads(3, 1e6), 3) << "a number that the caller gives is taken as it is";
  limit_threads(1);
  EXPECT_EQ(resolve_threads(0, 1e15), 1);
  EXPECT_EQ(resolve_threads(2, 1e15), 2);
  limit_threads(1000);
  EXPECT_EQ(resolve_threads(0, 1e15), processors);
  limit_threads(0);
  EXPECT_EQ(resolve_threads(0, 1e15), processors);
}

TEST(Implementations, TheReferenceIsLastEverywhere) {
  EXPECT_EQ(implementations(Op::attention).back(), "ref/attention");
  EXPECT_EQ(implementations(Op::kda_recurrent).back(), "ref/kda_recurrent");
  EXPECT_EQ(implementations(Op::kda_chunk).back(), "ref/kda_chunk");
}

TEST(Implementations, VerdictsComeInTheListsOrder) {
  const AttentionPlacement placement{AttentionData(small)};
  std::vector<std::string> names;
  for (const Verdict& v : why_attention(placement.args(), placement.batch(), placement.options())) {
    names.push_back(v.implementation);
  }
  EXPECT_EQ(names, implementations(Op::attention));
}

TEST(Implementations, AnUnknownNameIsRefusedWithTheKnownOnes) {
  AttentionPlacement placement{AttentionData(small)};
  const auto faults = faults_of([&] { placement.run("cpu/attention.none"); });
  ASSERT_THAT(faults, ElementsAre(IsFault(Code::implementation_unknown, "attention", "",
                                          "\"cpu/attention.none\"")));
  EXPECT_THAT(faults[0].limit, HasSubstr("ref/attention"));
}

TEST(Implementations, WithoutVectorInstructionsTheReferenceRuns) {
  const Injected hidden({.hide_simd = true});
  AttentionPlacement placement{AttentionData(small)};
  for (const Verdict& v : why_attention(placement.args(), placement.batch(), placement.options())) {
    if (!v.implementation.starts_with("cpu/")) continue;
    ASSERT_TRUE(v.declined.has_value()) << v.implementation;
    EXPECT_EQ(v.declined->code, Code::simd_missing);
    const auto faults = faults_of([&] { placement.run(v.implementation); });
    EXPECT_THAT(faults, ElementsAre(testing::Field(&Fault::code, Code::implementation_declined),
                                    testing::Field(&Fault::code, Code::simd_missing)));
  }
  placement.run("");  // falls to the reference
}

TEST(Workspace, AFailedAllocationIsAnErrorThatSaysHowMuch) {
  AttentionPlacement placement{AttentionData(small)};
  const Injected failing({.fail_allocations = true});
  int needed = 0;
  for (const std::string& name : implementations(Op::attention)) {
    if (placement.declined(name)) continue;
    const Context context{.threads = 2, .implementation = name};
    const auto bytes = attention_workspace_bytes(placement.args(), placement.batch(),
                                                 placement.options(), context);
    if (bytes == 0) continue;
    ++needed;
    EXPECT_THAT(faults_of([&] { placement.run(context); }),
                ElementsAre(IsFault(Code::out_of_memory, "workspace", "", std::to_string(bytes))));
  }
  EXPECT_GT(needed, 0) << "no implementation allocates: nothing was tested";
}

TEST(Workspace, TooSmallOrMisalignedIsRefused) {
  AttentionPlacement placement{AttentionData(small)};
  std::vector<std::byte> memory(1 << 24);
  auto* aligned = memory.data() + 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
  for (const std::string& name : implementations(Op::attention)) {
    if (placement.declined(name)) continue;
    Context context{.threads = 2, .implementation = name};
    const auto bytes = attention_workspace_bytes(placement.args(), placement.batch(),
                                                 placement.options(), context);
    context.workspace = {aligned + 8, bytes + 64};
    EXPECT_THAT(faults_of([&] { placement.run(context); }),
                ElementsAre(IsFault(Code::workspace_misaligned, "workspace", "", "8")));
    if (bytes < 2) continue;
    context.workspace = {aligned, bytes - 1};
    const auto faults = faults_of([&] { placement.run(context); });
    ASSERT_THAT(faults, ElementsAre(IsFault(Code::workspace_small, "workspace", "",
                                            std::to_string(bytes - 1))));
    EXPECT_EQ(faults[0].limit, std::to_string(bytes));
  }
}

TEST(Threads, NegativeIsRefusedAndManyAreFine) {
  AttentionPlacement placement{AttentionData(small)};
  EXPECT_THAT(faults_of([&] { placement.run({.threads = -1}); }),
              ElementsAre(IsFault(Code::threads_invalid, "threads", "", "-1")));
  const auto one = placement.run({.threads = 1});
  const auto many = placement.run({.threads = 500});
  EXPECT_TRUE(same_bits(many[2].out, one[2].out, {70, 4, 64}));
  const auto most = placement.run({.threads = std::numeric_limits<int>::max()});
  EXPECT_TRUE(same_bits(most[2].out, one[2].out, {70, 4, 64})) << "without memory for them all";
}

TEST(InjectedFaults, EveryOneThatIsOfferedMeetsTheCallAndEndsWithIt) {
  const AttentionPlacement placement{AttentionData(small)};
  const Context forced{.implementation = "ref/attention"};
  for (const Code code : {Code::head_size_unsupported, Code::dtype_unsupported}) {
    const Injected injected({.decline = code});
    const auto verdicts = why_attention(placement.args(), placement.batch(), placement.options());
    EXPECT_FALSE(verdicts.back().declined);
    for (const Verdict& v : verdicts) {
      if (v.implementation.starts_with("cpu/")) {
        ASSERT_TRUE(v.declined);
        EXPECT_EQ(v.declined->code, code);
      }
    }
    EXPECT_NO_THROW(attention(placement.args(), placement.batch(), placement.options(), forced));
  }
  for (const Code code : {Code::cuda_absent, Code::cuda_unavailable, Code::cuda_failed,
                          Code::capability_low, Code::device_memory}) {
    const Injected injected({.device_fault = code});
    AttentionArgs args = placement.args();
    for (TensorView* t : {&args.q, &args.k, &args.v, &args.out, &args.lse}) {
      std::vector<std::int64_t> sizes;
      for (int dim = 0; dim < t->rank(); ++dim) sizes.push_back(t->size(dim));
      *t = {t->data(), t->dtype(), {DeviceType::cuda, 0}, sizes};
    }
    EXPECT_THAT(faults_of([&] { attention(args, placement.batch(), placement.options()); }),
                ElementsAre(testing::Field(&Fault::code, code)));
    EXPECT_NO_THROW(attention(placement.args(), placement.batch(), placement.options()))
        << "tensors on the host are not concerned";
  }
  EXPECT_THAT(faults_of([] { inject_faults({.device_fault = Code::scale_invalid}); }),
              ElementsAre(IsFault(Code::option_value, "device_fault", "", "PA1101")));
  EXPECT_THAT(faults_of([] { inject_faults({.decline = Code::cuda_absent}); }),
              ElementsAre(IsFault(Code::option_value, "decline", "", "PA4001")));
}

TEST(SharedBatch, ManyThreadsAndManyProblemsOnOneBatch) {
  // More distinct problems than the batch keeps schedules for, from several threads at once.
  const AttentionData data(small);
  const AttentionPlacement memory(data);
  const auto expected = [&](double scale) {
    AttentionData scaled = data;
    scaled.shape.scale = scale;
    return AttentionPlacement(scaled).run({.threads = 1});
  };
  std::vector<std::vector<AttentionResult>> results;
  for (int i = 0; i < 24; ++i) results.push_back(expected(0.05 + 0.01 * i));
  const auto rows = static_cast<std::int64_t>(75);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 24; ++i) {
        const int which = (i * 7 + t) % 24;
        std::vector<float> out(static_cast<std::size_t>(rows * 4 * 64));
        AttentionArgs args = memory.args();
        const std::int64_t shape[] = {rows, 4, 64};
        args.out = {out.data(), DType::f32, {}, shape};
        args.lse = {};
        attention(args, memory.batch(), {.softmax_scale = 0.05 + 0.01 * which, .causal = true},
                  {.threads = 1 + t % 2});
        const auto& r = results[static_cast<std::size_t>(which)];
        const std::size_t first = r[0].out.size();
        if (!std::equal(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(first),
                        r[0].out.begin()) ||
            !std::equal(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                        r[2].out.begin())) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(SharedBatch, OneBatchServesBothOperations) {
  const std::vector<std::int64_t> lengths{5, 0, 70};
  const auto batch = PackedBatch::from_lengths(lengths);
  const AttentionPlacement softmax{AttentionData(small)};
  const KdaPlacement kda{KdaData(small_kda)};
  attention(softmax.args(), batch, {.causal = true});
  kda_recurrent(kda.args(), batch);
  kda_chunk(kda.args(), batch);
  attention(softmax.args(), batch, {.causal = true});
  EXPECT_EQ(kda_chunk_count(batch, 64), 3);
  EXPECT_EQ(kda_chunk_count(batch, 16), 6);
}

TEST(Progress, AnExceptionInTheCallbackReachesTheCaller) {
  AttentionPlacement placement{AttentionData(small)};
  for (const std::string& name : implementations(Op::attention)) {
    if (placement.declined(name)) continue;
    Context context{.threads = 2, .implementation = name};
    context.progress = [](std::int64_t, std::int64_t) { throw std::runtime_error("stop"); };
    EXPECT_THROW(attention(placement.args(), placement.batch(), placement.options(), context),
                 std::runtime_error)
        << name;
  }
  placement.run({.threads = 2});  // nothing is left in a bad state
}

}  // namespace
}  // namespace packattn::test
