// SPDX-License-Identifier: Apache-2.0
// Every implementation of softmax attention on every case of the table, held to the twelve
// promises that do not depend on a particular input.
#include <algorithm>
#include <limits>
#include <memory>
#include <tuple>

#include <gtest/gtest.h>

#include "packattn/packattn.h"

#include "support/attention_data.h"
#include "support/compare.h"
#include "support/coverage.h"
#include "support/random.h"

namespace packattn::test {
namespace {

using Parameter = std::tuple<std::string, AttentionCase>;

class AttentionConformance : public testing::TestWithParam<Parameter> {
 protected:
  AttentionConformance() : data_(std::get<1>(GetParam())) {}

  void SetUp() override {
    placement_ = std::make_unique<AttentionPlacement>(data_);
    const auto declined = placement_->declined(implementation());
    if (!takes(implementation(), declined)) {
      expect_forced_is_refused(*declined);
      GTEST_SKIP() << declined->message;
    }
  }

  const std::string& implementation() const { return std::get<0>(GetParam()); }
  const AttentionCase& shape() const { return data_.shape; }
  std::vector<std::int64_t> out_shape(std::int64_t rows) const {
    return {rows, shape().heads_q, shape().dv()};
  }
  std::vector<std::int64_t> lse_shape(std::int64_t rows) const { return {shape().heads_q, rows}; }

  std::vector<AttentionResult> run(const AttentionData& data) {
    return AttentionPlacement(data).run(implementation());
  }

  void expect_same(const AttentionResult& actual, const AttentionResult& expected,
                   const std::string& what) {
    const auto rows =
        static_cast<std::int64_t>(expected.out.size()) / (shape().heads_q * shape().dv());
    EXPECT_TRUE(same_bits(actual.out, expected.out, out_shape(rows))) << "out, " << what;
    EXPECT_TRUE(same_bits(actual.lse, expected.lse, lse_shape(rows))) << "lse, " << what;
  }

  void expect_forced_is_refused(const Fault& reason) {
    try {
      placement_->run(implementation());
      ADD_FAILURE() << implementation() << " ran what it declines";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::implementation_declined);
      EXPECT_NE(std::string(error.what()).find(reason.message), std::string::npos);
    }
  }

  AttentionData data_;
  std::unique_ptr<AttentionPlacement> placement_;
};

class CausalAttention : public AttentionConformance {};
class ContinuedAttention : public AttentionConformance {};
class SplitAttention : public AttentionConformance {};

// Rows [begin, end) of a result.
AttentionResult rows_of(const AttentionResult& r, const AttentionCase& c, std::int64_t rows,
                        std::int64_t begin, std::int64_t end) {
  const std::int64_t width = c.heads_q * c.dv();
  AttentionResult part;
  part.out.assign(r.out.begin() + begin * width, r.out.begin() + end * width);
  for (std::int64_t h = 0; h < (r.lse.empty() ? 0 : c.heads_q); ++h) {
    part.lse.insert(part.lse.end(), r.lse.begin() + h * rows + begin,
                    r.lse.begin() + h * rows + end);
  }
  return part;
}

TEST_P(AttentionConformance, EqualsTheOracle) {
  const auto results = placement_->run(implementation());
  for (std::size_t n = 0; n < results.size(); ++n) {
    const AttentionOracle expected = data_.expected(n);
    const std::int64_t rows = data_.sequences[n].lq;
    EXPECT_TRUE(close(results[n].out, expected.out, out_shape(rows),
                      attention_limits(shape().dtype, shape().out_type())))
        << "out, sequence " << n;
    if (shape().lse) {
      EXPECT_TRUE(lse_close(results[n].lse, expected.lse, lse_shape(rows)))
          << "lse, sequence " << n;
    }
  }
}

TEST_P(AttentionConformance, RepeatsBitForBitOnAnyNumberOfThreads) {
  const auto once = placement_->run(implementation());
  for (const int threads : {1, 2, 3, 8, 0}) {
    const auto again = placement_->run(implementation(), threads);
    for (std::size_t n = 0; n < once.size(); ++n) {
      expect_same(again[n], once[n],
                  "sequence " + std::to_string(n) + ", threads " + std::to_string(threads));
    }
  }
}

TEST_P(AttentionConformance, PackedIsEachSequenceAlone) {
  const auto packed = placement_->run(implementation());
  for (std::size_t n = 0; n < packed.size(); ++n) {
    expect_same(run(data_.only({n}))[0], packed[n], "sequence " + std::to_string(n));
  }
}

TEST_P(AttentionConformance, OrderOfSequencesIsFree) {
  const auto packed = placement_->run(implementation());
  Random random(seed_of(shape().name));
  std::vector<std::size_t> order;
  for (const auto n : random.permutation(static_cast<std::int64_t>(packed.size()))) {
    order.push_back(static_cast<std::size_t>(n));
  }
  const auto shuffled = run(data_.only(order));
  for (std::size_t i = 0; i < order.size(); ++i) {
    expect_same(shuffled[i], packed[order[i]], "sequence " + std::to_string(order[i]));
  }
}

TEST_P(AttentionConformance, NaNStaysInItsSequence) {
  const auto clean = placement_->run(implementation());
  for (std::size_t bad = 0; bad < data_.sequences.size(); ++bad) {
    AttentionData edited = data_;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (auto* values :
         {&edited.sequences[bad].q, &edited.sequences[bad].k, &edited.sequences[bad].v}) {
      std::fill(values->begin(), values->end(), nan);
    }
    const auto results = AttentionPlacement(edited).run(implementation());
    for (std::size_t n = 0; n < results.size(); ++n) {
      if (n != bad) expect_same(results[n], clean[n], "sequence " + std::to_string(n));
    }
  }
}

TEST_P(CausalAttention, LaterTokensDoNotChangeEarlierRows) {
  const auto before = placement_->run(implementation());
  AttentionData edited = data_;
  std::vector<std::int64_t> kept_rows;
  for (AttentionSequence& s : edited.sequences) {
    const std::int64_t shift = shape().align == Align::bottom_right ? s.lk - s.lq : 0;
    const std::int64_t kept = s.lq / 2;
    const std::int64_t seen = std::clamp<std::int64_t>(kept + shift, 0, s.lk);
    std::fill(s.q.begin() + kept * shape().heads_q * shape().head_dim, s.q.end(), 3.0F);
    std::fill(s.k.begin() + seen * shape().heads_k * shape().head_dim, s.k.end(), -2.0F);
    std::fill(s.v.begin() + seen * shape().heads_k * shape().dv(), s.v.end(), 100.0F);
    kept_rows.push_back(kept);
  }
  const auto after = AttentionPlacement(edited).run(implementation());
  for (std::size_t n = 0; n < after.size(); ++n) {
    const std::int64_t rows = data_.sequences[n].lq;
    expect_same(rows_of(after[n], shape(), rows, 0, kept_rows[n]),
                rows_of(before[n], shape(), rows, 0, kept_rows[n]),
                "sequence " + std::to_string(n));
  }
}

TEST_P(ContinuedAttention, ChunkedPrefillAtAnyCutIsOneShot) {
  const auto whole = placement_->run(implementation());
  Random random(seed_of(shape().name));
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const AttentionSequence& s = data_.sequences[n];
    if (s.lq == 0) continue;
    // The last row alone is a decode step after a prefill.
    for (const std::int64_t cut : {std::int64_t{1}, random.between(0, s.lq), s.lq - 1}) {
      AttentionData parts = data_.only({});
      for (const auto& [begin, end] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, s.lq}}) {
        const std::int64_t keys = std::max<std::int64_t>(0, end + s.lk - s.lq);
        parts.sequences.push_back(data_.cut(n, begin, end, 0, keys));
      }
      const auto results = run(parts);
      const std::string what =
          "sequence " + std::to_string(n) + " cut at row " + std::to_string(cut);
      expect_same(results[0], rows_of(whole[n], shape(), s.lq, 0, cut), what);
      expect_same(results[1], rows_of(whole[n], shape(), s.lq, cut, s.lq), what);
    }
  }
}

TEST_P(SplitAttention, SplitKeysAndMergedAreOneShot) {
  for (std::size_t n = 0; n < data_.sequences.size(); ++n) {
    const AttentionSequence& s = data_.sequences[n];
    const std::int64_t cut = s.lk / 3;
    AttentionData first = data_.only({});
    first.shape.out_dtype = DType::f32;
    first.shape.lse = true;
    AttentionData second = first;
    first.sequences.push_back(data_.cut(n, 0, s.lq, 0, cut));
    second.sequences.push_back(data_.cut(n, 0, s.lq, cut, s.lk));
    first.shape.sinks = false;  // the sink belongs to one part
    if (shape().causal) {
      first.shape.causal = false;
      first.shape.window.right = s.lk - cut;
    }
    auto a = run(first)[0];
    const auto b = run(second)[0];
    const auto view = [](const std::vector<float>& values, std::vector<std::int64_t> dims) {
      return TensorView(const_cast<float*>(values.data()), DType::f32, {}, dims);
    };
    merge_states({.out_a = view(a.out, out_shape(s.lq)),
                  .lse_a = view(a.lse, lse_shape(s.lq)),
                  .out_b = view(b.out, out_shape(s.lq)),
                  .lse_b = view(b.lse, lse_shape(s.lq)),
                  .out = view(a.out, out_shape(s.lq)),
                  .lse = view(a.lse, lse_shape(s.lq))});
    const AttentionOracle expected = data_.expected(n);
    EXPECT_TRUE(
        close(a.out, expected.out, out_shape(s.lq), attention_limits(shape().dtype, DType::f32)))
        << "sequence " << n;
    EXPECT_TRUE(lse_close(a.lse, expected.lse, lse_shape(s.lq))) << "sequence " << n;
  }
}

TEST_P(AttentionConformance, WorkspaceAndProgressAreTheCallersIfWanted) {
  const auto own = placement_->run(implementation());
  Context context{.threads = 2, .implementation = implementation()};
  const std::size_t bytes = attention_workspace_bytes(placement_->args(), placement_->batch(),
                                                      placement_->options(), context);
  Guarded memory(DType::u8, {static_cast<std::int64_t>(bytes)});
  context.workspace = {memory.view().as<std::byte>(), bytes};
  std::int64_t last = 0;
  std::int64_t total = -1;
  context.progress = [&](std::int64_t done, std::int64_t of) {
    EXPECT_EQ(done, last + 1);
    EXPECT_TRUE(total == -1 || total == of);
    last = done;
    total = of;
  };
  const auto given = placement_->run(context);
  EXPECT_EQ(memory.damaged(), 0) << "bytes around the workspace were written";
  EXPECT_TRUE(total == -1 || last == total) << last << " of " << total;
  for (std::size_t n = 0; n < own.size(); ++n) {
    expect_same(given[n], own[n], "sequence " + std::to_string(n));
  }
}

// A row sees no later key.
bool is_causal(const AttentionCase& c) { return c.causal; }
// Rows keep their keys if the sequence is cut behind them.
bool can_continue(const AttentionCase& c) { return c.causal && c.align == Align::bottom_right; }
// What either part of the keys computes can be said as a call of its own.
bool can_split(const AttentionCase& c) {
  const bool plain = !c.window.left && !c.window.right && c.slopes == Slopes::none;
  return plain && (!c.causal || c.align == Align::bottom_right);
}

std::vector<AttentionCase> only(bool (*wanted)(const AttentionCase&)) {
  auto table = attention_table();
  std::erase_if(table, [&](const AttentionCase& c) { return !wanted(c); });
  return table;
}
auto every_implementation_on(const std::vector<AttentionCase>& table) {
  return testing::Combine(testing::ValuesIn(implementations(Op::attention)),
                          testing::ValuesIn(table));
}
std::string name_of(const testing::TestParamInfo<Parameter>& info) {
  return test_name(std::get<0>(info.param) + "__" + std::get<1>(info.param).name);
}
INSTANTIATE_TEST_SUITE_P(All, AttentionConformance, every_implementation_on(attention_table()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, CausalAttention, every_implementation_on(only(is_causal)), name_of);
INSTANTIATE_TEST_SUITE_P(All, ContinuedAttention, every_implementation_on(only(can_continue)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, SplitAttention, every_implementation_on(only(can_split)), name_of);

}  // namespace
}  // namespace packattn::test
