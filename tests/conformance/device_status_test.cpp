// SPDX-License-Identifier: Apache-2.0
// Boundaries and slots that only the device sees, and that are wrong: the sequences concerned have
// output 0 and an untouched state, the others their bits, no other byte is written, and last_status
// says what was found. Run on every device implementation of KDA.
#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "packattn/packattn.h"

#include "support/boundaries.h"
#include "support/compare.h"
#include "support/coverage.h"
#include "support/device_memory.h"
#include "support/guarded.h"
#include "support/random.h"

namespace packattn::test {
namespace {

using Integers = std::vector<std::int64_t>;

constexpr std::int64_t tokens = 12, heads = 2, K = 16, V = 24, slots = 6;
constexpr Device gpu{DeviceType::cuda, 0};

/// Where sequences and their states are said to be.
struct Call {
  Integers cu;               ///< on the device only
  Integers starts, lengths;  ///< instead of `cu`, known to the host
  Integers state_slots = {};
  Integers read_slots = {}, write_slots = {};
  std::int64_t columns = 0;  ///< state_slots are [N, columns]
  Integers accepted = {};
};

struct Outcome {
  std::vector<float> out, pool;
  std::optional<Fault> status;
};

class DeviceStatus : public testing::TestWithParam<std::pair<Op, std::string>> {
 protected:
  void SetUp() override {
    q = Guarded(DType::f32, {1, tokens, heads, K});
    k = Guarded(DType::f32, {1, tokens, heads, K});
    v = Guarded(DType::f32, {1, tokens, heads, V});
    g = Guarded(DType::f32, {1, tokens, heads, K});
    beta = Guarded(DType::f32, {1, tokens, heads});
    pool = Guarded(DType::f32, {slots, heads, K, V});
    pool_v_first = Guarded(DType::f32, {slots, heads, V, K});
    Random random(7);
    for (Guarded* x : {&q, &k, &v, &g, &beta, &pool, &pool_v_first}) {
      for (std::int64_t i = 0; i < x->numel(); ++i) {
        x->set(i, x == &g ? -random.uniform() : 0.2 * random.normal());
      }
      x->freeze();
    }
    if (!why_not().empty()) GTEST_SKIP() << why_not();
    last_status(gpu);
  }

  Op op() const { return GetParam().first; }

  std::string why_not() {
    Guarded out(DType::f32, {1, tokens, heads, V});
    const auto at = [](const Guarded& x) { return x.view_as_if_on_device(); };
    const KdaArgs args{
        .q = at(q), .k = at(k), .v = at(v), .g = at(g), .beta = at(beta), .out = at(out)};
    for (const Verdict& verdict : why_kda(op(), args, nullptr)) {
      if (verdict.implementation == GetParam().second && verdict.declined) {
        return verdict.declined->message;
      }
    }
    return {};
  }

  Outcome run(const Call& c, StateLayout layout = StateLayout::k_first) {
    Guarded& states = layout == StateLayout::k_first ? pool : pool_v_first;
    Guarded out(DType::f32, {1, tokens, heads, V});
    states.restore();
    std::vector<Guarded> kept;
    kept.reserve(8);
    const auto send = [&](const Integers& values, Integers shape = {}) -> TensorView {
      if (values.empty()) return {};
      if (shape.empty()) shape = {static_cast<std::int64_t>(values.size())};
      kept.emplace_back(DType::i64, shape);
      for (std::size_t i = 0; i < values.size(); ++i) {
        kept.back().set_integer(static_cast<std::int64_t>(i), values[i]);
      }
      return kept.back().send();
    };
    const auto count = static_cast<std::int64_t>(c.cu.empty() ? c.starts.size() : c.cu.size() - 1);
    KdaArgs args{.q = q.send(),
                 .k = k.send(),
                 .v = v.send(),
                 .g = g.send(),
                 .beta = beta.send(),
                 .out = out.send(),
                 .state = states.send()};
    args.slots = send(c.state_slots, c.columns > 0 ? Integers{count, c.columns} : Integers{});
    args.read_slots = send(c.read_slots);
    args.write_slots = send(c.write_slots);
    args.num_accepted_tokens = send(c.accepted);
    if (c.state_slots.empty() && c.read_slots.empty()) {
      Integers own(static_cast<std::size_t>(count));
      for (std::size_t n = 0; n < own.size(); ++n) own[n] = static_cast<std::int64_t>(n);
      args.slots = send(own);
    }
    const auto batch = c.cu.empty() ? PackedBatch::from_starts_and_lengths(c.starts, c.lengths)
                                    : PackedBatch::from_cu_seqlens(send(c.cu));
    const KdaOptions options{.state_layout = layout};
    const Context context{.implementation = GetParam().second};
    op() == Op::kda_recurrent ? kda_recurrent(args, batch, options, context)
                              : kda_chunk(args, batch, options, context);
    for (Guarded* x : {&q, &k, &v, &g, &beta, &states, &out}) x->fetch();
    for (Guarded* x : {&q, &k, &v, &g, &beta}) EXPECT_TRUE(x->unchanged());
    EXPECT_EQ(out.damaged() + states.damaged(), 0) << "bytes around an output were written";
    return {out.values(), states.values(), last_status(gpu)};
  }

  /// `bad` behaves as `good` does, whose wrong sequences are empty or skipped; their rows are 0.
  void expect(const Call& bad, const Call& good, Code code, const std::string& argument,
              const std::string& position, const std::string& value) {
    // V-first states are those that the decode kernel takes.
    for (const StateLayout layout : {StateLayout::k_first, StateLayout::v_first}) {
      SCOPED_TRACE(layout == StateLayout::k_first ? "K-first" : "V-first");
      expect(bad, good, layout, code, argument, position, value);
    }
  }

  void expect(const Call& bad, const Call& good, StateLayout layout, Code code,
              const std::string& argument, const std::string& position, const std::string& value) {
    const Outcome expected = run(good, layout);
    EXPECT_FALSE(expected.status) << render(*expected.status);
    const Outcome found = run(bad, layout);
    ASSERT_TRUE(found.status) << "no status";
    EXPECT_EQ(code_id(found.status->code), code_id(code));
    EXPECT_EQ(found.status->argument, argument);
    EXPECT_EQ(found.status->position, position);
    EXPECT_EQ(found.status->value, value);
    EXPECT_TRUE(same_bits(found.pool, expected.pool, {slots, heads, K, V}));
    constexpr std::int64_t width = heads * V;
    for (std::int64_t row = 0; row < tokens; ++row) {
      bool owned = false;
      for (std::size_t n = 0; n < good.starts.size(); ++n) {
        owned = owned || (row >= good.starts[n] && row < good.starts[n] + good.lengths[n]);
      }
      const auto first = static_cast<std::ptrdiff_t>(row * width);
      const std::vector<float> is(found.out.begin() + first, found.out.begin() + first + width);
      std::vector<float> should(static_cast<std::size_t>(width));
      if (owned) {
        should.assign(expected.out.begin() + first, expected.out.begin() + first + width);
      }
      EXPECT_TRUE(same_bits(is, should, {heads, V})) << "row " << row;
    }
    EXPECT_FALSE(last_status(gpu)) << "a status is given once";
  }

  Guarded q, k, v, g, beta, pool, pool_v_first;
};

TEST_P(DeviceStatus, OneTokenASequence) {
  const Call good{.cu = {},
                  .starts = {0, 1, 2, 3, 4},
                  .lengths = {1, 1, 1, 1, 1},
                  .state_slots = {5, -1, 3, -1, 4}};
  expect({.cu = {0, 1, 2, 3, 4, 5}, .starts = {}, .lengths = {}, .state_slots = {5, 2, 3, 2, 4}},
         good, Code::slot_duplicate, "slots", "sequence 1", "2");
  expect({.cu = {0, 1, 2, 3, 4, 5}, .starts = {}, .lengths = {}, .state_slots = {5, 9, 3, -1, 4}},
         good, Code::slot_range, "slots", "sequence 1", "9");
}

TEST_P(DeviceStatus, GoodBoundariesHaveNone) {
  const Outcome host = run({.cu = {}, .starts = {0, 3, 7}, .lengths = {3, 4, 5}});
  const Outcome device = run({.cu = {0, 3, 7, 12}, .starts = {}, .lengths = {}});
  EXPECT_FALSE(device.status);
  EXPECT_TRUE(same_bits(device.out, host.out, {tokens, heads, V}));
  EXPECT_TRUE(same_bits(device.pool, host.pool, {slots, heads, K, V}));
}

TEST_P(DeviceStatus, BoundariesThatDecrease) {
  expect({.cu = {0, 7, 3, 12}, .starts = {}, .lengths = {}},
         {.cu = {}, .starts = {0, 0, 0}, .lengths = {7, 0, 0}}, Code::boundaries_decrease,
         "cu_seqlens_q", "sequence 1", "3");
}
TEST_P(DeviceStatus, BoundariesPastTheTensor) {
  expect({.cu = {0, 3, 7, 20}, .starts = {}, .lengths = {}},
         {.cu = {}, .starts = {0, 3, 0}, .lengths = {3, 4, 0}}, Code::boundaries_end,
         "cu_seqlens_q", "sequence 2", "20");
}
TEST_P(DeviceStatus, OneBoundaryFarAway) {
  expect({.cu = {0, 3, std::int64_t{1} << 60, 12}, .starts = {}, .lengths = {}},
         {.cu = {}, .starts = {0, 0, 0}, .lengths = {3, 0, 0}}, Code::boundaries_end,
         "cu_seqlens_q", "sequence 1", "1152921504606846976");
}
TEST_P(DeviceStatus, BoundariesThatStartLate) {
  expect({.cu = {1, 3, 7, 12}, .starts = {}, .lengths = {}},
         {.cu = {}, .starts = {0, 3, 7}, .lengths = {0, 4, 5}}, Code::boundaries_start,
         "cu_seqlens_q", "sequence 0", "1");
}
TEST_P(DeviceStatus, RowsAfterTheEnd) {
  expect({.cu = {0, 3, 7, 10}, .starts = {}, .lengths = {}},
         {.cu = {}, .starts = {0, 3, 7}, .lengths = {3, 4, 3}}, Code::rows_after_end,
         "cu_seqlens_q", "sequence 3", "10");
}
TEST_P(DeviceStatus, NegativeBoundary) {
  expect({.cu = {0, -5, 7, 12}, .starts = {}, .lengths = {}},
         {.cu = {}, .starts = {0, 0, 7}, .lengths = {0, 0, 5}}, Code::boundaries_decrease,
         "cu_seqlens_q", "sequence 0", "-5");
}

Call with_slots(Integers state_slots) {
  return {
      .cu = {}, .starts = {0, 3, 7}, .lengths = {3, 4, 5}, .state_slots = std::move(state_slots)};
}
/// The rows of skipped sequences are 0 in both calls.
TEST_P(DeviceStatus, SlotsOutsideThePool) {
  expect(with_slots({1, 9, 3}), with_slots({1, -1, 3}), Code::slot_range, "slots", "sequence 1",
         "9");
  expect(with_slots({1, 2, -2}), with_slots({1, 2, -1}), Code::slot_range, "slots", "sequence 2",
         "-2");
  expect(with_slots({std::int64_t{1} << 40, 2, 3}), with_slots({-1, 2, 3}), Code::slot_range,
         "slots", "sequence 0", "1099511627776");
}
TEST_P(DeviceStatus, SlotsWrittenTwice) {
  expect(with_slots({4, 2, 4}), with_slots({-1, 2, -1}), Code::slot_duplicate, "slots",
         "sequence 0", "4");
  expect(with_slots({3, 3, 3}), with_slots({-1, -1, -1}), Code::slot_duplicate, "slots",
         "sequence 0", "3");
}
TEST_P(DeviceStatus, SlotReadByOneAndWrittenByAnother) {
  const auto split = [](Integers read, Integers write) {
    Call c = with_slots({});
    c.read_slots = std::move(read);
    c.write_slots = std::move(write);
    return c;
  };
  expect(split({0, 1, 2}, {3, 1, 0}), split({-1, 1, -1}, {-1, 1, -1}), Code::slot_read_and_written,
         "write_slots", "sequence 0", "0");
}
TEST_P(DeviceStatus, StateColumns) {
  if (op() == Op::kda_chunk) return;  // has none
  Call good{.cu = {},
            .starts = {0, 2},
            .lengths = {2, 2},
            .state_slots = {-1, -1, 2, 3},
            .columns = 2,
            .accepted = {1, 2}};
  Call bad = good;
  bad.state_slots = {0, 1, 2, 3};
  bad.accepted = {3, 2};
  const auto expect_status = [&](Code code, const char* argument, const char* value) {
    const Outcome expected = run(good);
    const Outcome found = run(bad);
    ASSERT_TRUE(found.status);
    EXPECT_EQ(code_id(found.status->code), code_id(code));
    EXPECT_EQ(found.status->argument, argument);
    EXPECT_EQ(found.status->position, "sequence 0");
    EXPECT_EQ(found.status->value, value);
    EXPECT_TRUE(same_bits(found.pool, expected.pool, {slots, heads, K, V}));
    const std::size_t rows = 4 * heads * V;  // of the two sequences
    EXPECT_TRUE(same_bits({found.out.data(), rows}, {expected.out.data(), rows}, {4, heads, V}));
  };
  expect_status(Code::accepted_tokens_range, "num_accepted_tokens", "3");
  // More tokens than columns: only the device knows the length.
  bad = {.cu = {0, 10, 12},
         .starts = {},
         .lengths = {},
         .state_slots = {0, 1, 2, 3},
         .columns = 2,
         .accepted = {1, 2}};
  good = {.cu = {},
          .starts = {0, 10},
          .lengths = {0, 2},
          .state_slots = {-1, -1, 2, 3},
          .columns = 2,
          .accepted = {1, 2}};
  const Outcome expected = run(good);
  const Outcome found = run(bad);
  ASSERT_TRUE(found.status);
  EXPECT_EQ(code_id(found.status->code), code_id(Code::slot_columns));
  EXPECT_TRUE(same_bits(found.pool, expected.pool, {slots, heads, K, V}));
  EXPECT_TRUE(std::all_of(found.out.begin(), found.out.begin() + 10 * heads * V,
                          [](float x) { return x == 0; }));
}

std::vector<std::pair<Op, std::string>> device_implementations() {
  std::vector<std::pair<Op, std::string>> all;
  for (const Op op : {Op::kda_recurrent, Op::kda_chunk}) {
    for (const std::string& name : implementations(op)) {
      if (runs_on_device(name)) all.emplace_back(op, name);
    }
  }
  return all;
}
std::string name_of(const testing::TestParamInfo<std::pair<Op, std::string>>& info) {
  return test_name(info.param.second);
}
INSTANTIATE_TEST_SUITE_P(All, DeviceStatus, testing::ValuesIn(device_implementations()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceStatus);  // none in a build without CUDA

}  // namespace
}  // namespace packattn::test
