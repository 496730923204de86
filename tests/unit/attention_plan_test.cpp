// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention_plan.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace packattn::cpu {
namespace {

AttentionProblem problem(MaskRule mask = {}) {
  AttentionProblem p;
  p.heads_q = 6;
  p.heads_k = 2;
  p.head_dim = p.value_dim = 128;
  p.mask = mask;
  return p;
}

std::shared_ptr<const AttentionPlan> plan_for(const AttentionProblem& p, const PackedBatch& batch,
                                              int threads) {
  static const AttentionArgs args;
  static const AttentionOptions options;
  const AttentionCall call{args, options, p, batch};
  const auto plan = make_plan(fp32_kernels().front(), call, threads);
  return std::dynamic_pointer_cast<const AttentionPlan>(plan);
}

TEST(AttentionPlan, CoversEveryRowOnceLongestFirst) {
  const std::vector<std::int64_t> q{1000, 1, 0, 77}, k{1000, 5000, 3, 0};
  const auto batch = PackedBatch::from_lengths(q, k);
  for (const int threads : {1, 2, 64}) {
    const AttentionProblem p = problem();
    const auto plan = plan_for(p, batch, threads);
    std::vector<std::vector<int>> seen;
    for (const std::int64_t n : q) seen.emplace_back(static_cast<std::size_t>(n * 3));
    std::int64_t cost = std::numeric_limits<std::int64_t>::max();
    for (const Work& work : plan->work) {
      const std::int64_t splits = std::max<std::int64_t>(1, work.split_end - work.split_begin);
      if (work.parts < 0 || work.split_begin == 0) {
        for (std::int64_t r = work.row_begin; r < work.row_begin + work.rows; ++r) {
          ++seen[static_cast<std::size_t>(work.sequence)][static_cast<std::size_t>(r)];
        }
      }
      EXPECT_LE(work.rows, plan->tile_rows);
      if (work.parts < 0) {
        const std::int64_t keys = k[static_cast<std::size_t>(work.sequence)];
        EXPECT_LE(work.rows * keys, cost);
        cost = work.rows * keys;
      } else {
        EXPECT_EQ(splits, 1);
      }
    }
    for (const auto& rows : seen) {
      EXPECT_TRUE(std::all_of(rows.begin(), rows.end(), [](int times) { return times == 1; }));
    }
  }
}

TEST(AttentionPlan, LongKeysOfFewTilesAreSplitForIdleThreads) {
  const std::vector<std::int64_t> q{1}, k{3 * key_split + 5};
  const auto batch = PackedBatch::from_lengths(q, k);
  const AttentionProblem p = problem();
  EXPECT_TRUE(plan_for(p, batch, 1)->joins.empty());
  const auto plan = plan_for(p, batch, 16);
  ASSERT_EQ(plan->joins.size(), 1U);
  EXPECT_EQ(plan->joins.front().split_end, 4);
  EXPECT_EQ(plan->work.size(), 4U);
}

TEST(AttentionPlan, SplitsThatNoRowSeesAreLeftOut) {
  const std::vector<std::int64_t> q{1}, k{10 * key_split};
  const auto batch = PackedBatch::from_lengths(q, k);
  const AttentionProblem p = problem({.left = 100, .right = 0});
  const auto plan = plan_for(p, batch, 16);
  ASSERT_EQ(plan->work.size(), 1U);
  EXPECT_EQ(plan->work.front().split_begin, 9);
  EXPECT_FALSE(plan->long_keys);
}

TEST(AttentionPlan, MemoryDoesNotGrowWithLength) {
  const AttentionProblem p = problem({.right = 0});
  const auto bytes = [&](std::int64_t length) {
    return plan_for(p, PackedBatch::from_lengths(std::vector{length}), 4)->workspace_bytes;
  };
  EXPECT_EQ(bytes(5000), bytes(500'000));
  EXPECT_LT(bytes(500'000), std::size_t{8} << 20);
}

}  // namespace
}  // namespace packattn::cpu
