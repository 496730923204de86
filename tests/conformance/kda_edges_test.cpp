// SPDX-License-Identifier: Apache-2.0
// Single inputs that hurt elsewhere, on every implementation of both forms of KDA.
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "packattn/packattn.h"

#include "support/boundaries.h"
#include "support/compare.h"
#include "support/coverage.h"
#include "support/kda_data.h"
#include "support/sparse.h"

namespace packattn::test {
namespace {

using Parameter = std::pair<Op, std::string>;

class KdaEdges : public testing::TestWithParam<Parameter> {
 protected:
  Op op() const { return GetParam().first; }
  const std::string& implementation() const { return GetParam().second; }
  Context context() const { return {.threads = 2, .implementation = implementation()}; }

  std::vector<KdaResult> run(const KdaData& data) {
    KdaPlacement placement(data);
    if (!takes(implementation(), placement.declined(op(), implementation()))) return {};
    return placement.run(op(), implementation());
  }
  void call(const KdaArgs& args, const PackedBatch& batch, const KdaOptions& options) {
    op() == Op::kda_recurrent ? kda_recurrent(args, batch, options, context())
                              : kda_chunk(args, batch, options, context());
  }
  bool accepts(const KdaArgs& args, const PackedBatch& batch, const KdaOptions& options) {
    for (const Verdict& v : why_kda(op(), args, &batch, options)) {
      if (v.implementation == implementation()) return takes(implementation(), v.declined);
    }
    return false;
  }
};

TEST_P(KdaEdges, TheStateShrinksByEToTheGate) {
  // No writing (beta 0), two steps of gate -1: a factor of e^-2, not of 2^-2.
  KdaData data({.name = "decay",
                .lengths = {2},
                .options = {.state_layout = StateLayout::v_first},
                .state = KdaState::separate,
                .numbers = KdaNumbers::constant,
                .gate_value = -1});
  std::fill(data.sequences[0].beta.begin(), data.sequences[0].beta.end(), 0.0F);
  const auto results = run(data);
  if (results.empty()) return;
  for (std::size_t i = 0; i < results[0].final.size(); ++i) {
    const double expected = data.sequences[0].initial[i] * std::exp(-2.0);
    EXPECT_NEAR(results[0].final[i], expected, std::fabs(expected) * 1e-6);
  }
}

TEST_P(KdaEdges, EveryOptionChangesTheOutput) {
  const KdaCase plain{.name = "options",
                      .lengths = {9},
                      .A_log = true,
                      .bias = Bias::matrix,
                      .options = {.gate = GateKind::softplus}};
  const auto variant = [&](auto&& change) {
    KdaData data(plain);
    change(data);
    const auto results = run(data);
    return results.empty() ? std::vector<float>{} : results[0].out;
  };
  std::set<std::vector<float>> seen{variant([](KdaData&) {})};
  const auto expect_new = [&](const char* option, auto&& change) {
    auto out = variant(change);
    if (out.empty()) return;  // declined, which is said by code
    EXPECT_TRUE(seen.insert(std::move(out)).second) << option << " does not change the output";
  };
  expect_new("scale", [](KdaData& d) { d.shape.options.scale = 0.7; });
  expect_new("gate", [](KdaData& d) { d.shape.options.gate = GateKind::bounded; });
  expect_new("lower_bound", [](KdaData& d) {
    d.shape.options.gate = GateKind::bounded;
    d.shape.options.lower_bound = -3;
  });
  expect_new("A_log", [](KdaData& d) { d.A_log = {2, 2}; });
  expect_new("dt_bias", [](KdaData& d) { d.dt_bias.clear(), d.shape.bias = Bias::none; });
  expect_new("beta", [](KdaData& d) { d.shape.options.beta = BetaKind::sigmoid; });
  expect_new("two_sigmoid", [](KdaData& d) { d.shape.options.beta = BetaKind::two_sigmoid; });
  expect_new("l2norm", [](KdaData& d) { d.shape.options.l2norm = true; });
}

TEST_P(KdaEdges, OnlyTheNamedSlotChanges) {
  KdaData data({.name = "pool_of_5",
                .lengths = {2, 3},
                .options = {.state_layout = StateLayout::k_first},
                .state = KdaState::separate});
  const auto expected = run(data);
  if (expected.empty()) return;

  Guarded pool(DType::f32, {5, 2, 64, 128});
  pool.fill(data.sequences[1].initial, 3 * data.state_size());
  pool.freeze();
  Guarded slots = integers(DType::i64, {-1, 3});
  KdaPlacement memory(data);
  const bool on_device = runs_on_device(implementation());
  KdaArgs args = on_device ? memory.send() : memory.args();
  args.initial_state = args.final_state = {};
  args.state = on_device ? pool.send() : pool.view();
  args.slots = on_device ? slots.send() : slots.view();
  call(args, *memory.batch(), {.state_layout = StateLayout::k_first});
  pool.fetch();
  memory.fetch();
  EXPECT_TRUE(same_bits(pool.values(3 * data.state_size(), data.state_size()), expected[1].final,
                        {2, 64, 128}));
  EXPECT_TRUE(pool.unchanged(0, 3 * data.state_size()));
  EXPECT_TRUE(pool.unchanged(4 * data.state_size(), data.state_size()));
  const auto* out = memory.args().out.as<float>();
  EXPECT_TRUE(std::all_of(out, out + 2 * 2 * 128, [](float x) { return x == 0; }));
}

TEST_P(KdaEdges, GatesAboveZeroAreComputedUnlessEverythingIsChecked) {
  const KdaData data(
      {.name = "growing", .lengths = {5}, .numbers = KdaNumbers::constant, .gate_value = 0.1});
  KdaPlacement placement(data);
  if (!takes(implementation(), placement.declined(op(), implementation()))) return;
  const auto results = placement.run(op(), implementation());
  EXPECT_TRUE(close(results[0].out, data.expected(0).out, {5, 2, 128},
                    kda_out_limits(DType::f32, DType::f32)));
  if (runs_on_device(implementation())) return;  // its gates are not read back
  Context full = context();
  full.check_level = CheckLevel::full;
  try {
    placement.run(op(), full);
    FAIL() << "a growing state was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::gate_positive);
    EXPECT_EQ(error.faults()[0].argument, "g");
  }
}

TEST_P(KdaEdges, RowsFartherApartThan32BitsCanCount) {
  if (runs_on_device(implementation())) GTEST_SKIP() << "device_graph_test.cpp has it";
  constexpr std::int64_t rows = 17, row = std::int64_t{1} << 27, heads = 2, dim = 8;
  const SparseMemory memory(static_cast<std::size_t>(rows) * row * sizeof(float));
  const KdaData data({.name = "far_rows", .lengths = {9, 8}, .key_dim = dim, .value_dim = dim});
  const auto column = [&](std::int64_t first) {
    const std::int64_t shape[] = {1, rows, heads, dim}, strides[] = {rows * row, row, dim, 1};
    return TensorView(memory.floats() + first, DType::f32, {}, shape, strides);
  };
  KdaArgs args{.q = column(0),
               .k = column(1 << 16),
               .v = column(1 << 17),
               .g = column(3 << 16),
               .out = column(1 << 19)};
  const std::int64_t beta_shape[] = {1, rows, heads}, beta_strides[] = {rows * row, row, 1};
  args.beta = {memory.floats() + (1 << 18), DType::f32, {}, beta_shape, beta_strides};
  const auto spread = [&](const TensorView& to, const std::vector<float>& from, std::int64_t first,
                          std::int64_t width) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto n = static_cast<std::int64_t>(i);
      to.as<float>()[(first + n / width) * row + n % width] = from[i];
    }
  };
  std::int64_t first = 0;
  for (const KdaSequence& s : data.sequences) {
    spread(args.q, s.q, first, heads * dim);
    spread(args.k, s.k, first, heads * dim);
    spread(args.v, s.v, first, heads * dim);
    spread(args.g, s.g, first, heads * dim);
    spread(args.beta, s.beta, first, heads);
    first += s.t;
  }
  const auto batch = PackedBatch::from_lengths(data.shape.lengths);
  if (!accepts(args, batch, {})) return;
  call(args, batch, {});
  const auto near = run(data);
  first = 0;
  for (const KdaResult& r : near) {
    std::vector<float> far;
    for (std::size_t i = 0; i < r.out.size(); ++i) {
      const auto n = static_cast<std::int64_t>(i);
      far.push_back(args.out.as<float>()[(first + n / (heads * dim)) * row + n % (heads * dim)]);
    }
    EXPECT_TRUE(same_bits(far, r.out, {-1, heads, dim}));
    first += static_cast<std::int64_t>(r.out.size()) / (heads * dim);
  }
}

TEST_P(KdaEdges, MoreSequencesTimesHeadsThan16Bits) {
  const KdaData data({.name = "many",
                      .lengths = std::vector<std::int64_t>(4100, 1),
                      .heads = 16,
                      .value_heads = 16,
                      .key_dim = 8,
                      .value_dim = 4});
  const auto results = run(data);
  for (std::size_t n = 0; n < results.size(); n += 37) {
    EXPECT_TRUE(close(results[n].out, data.expected(n).out, {1, 16, 4},
                      kda_out_limits(DType::f32, DType::f32)));
  }
}

TEST_P(KdaEdges, ManySingleTokensAreTheSameAlone) {
  // Enough of them that a device gives a warp more than one group of columns; 72 is not a multiple.
  const KdaData data({.name = "many_single",
                      .lengths = std::vector<std::int64_t>(300, 1),
                      .heads = 4,
                      .value_heads = 8,
                      .key_dim = 20,
                      .value_dim = 72,
                      .options = {.state_layout = StateLayout::v_first},
                      .state = KdaState::separate});
  const auto results = run(data);
  for (std::size_t n = 0; n < results.size(); n += 61) {
    EXPECT_TRUE(close(results[n].out, data.expected(n).out, {1, 8, 72},
                      kda_out_limits(DType::f32, DType::f32)));
    const auto alone = run(data.only({n}))[0];
    EXPECT_TRUE(same_bits(alone.out, results[n].out, {1, 8, 72})) << n;
    EXPECT_TRUE(same_bits(alone.final, results[n].final, {8, 20, 72})) << n;
  }
}

std::vector<Parameter> all_implementations() {
  std::vector<Parameter> all;
  for (const Op op : {Op::kda_recurrent, Op::kda_chunk}) {
    for (const std::string& name : implementations(op)) all.emplace_back(op, name);
  }
  return all;
}
std::string name_of(const testing::TestParamInfo<Parameter>& info) {
  return test_name(info.param.second);
}
INSTANTIATE_TEST_SUITE_P(All, KdaEdges, testing::ValuesIn(all_implementations()), name_of);

}  // namespace
}  // namespace packattn::test
