// SPDX-License-Identifier: Apache-2.0
// Every implementation of softmax attention on every case of the table, held to the twelve
// promises that do not depend on a particular input.
#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "conformance/attention_fixture.h"
#include "support/compare.h"
#include "support/random.h"

namespace packattn::test {
namespace {

class CausalAttention : public AttentionConformance {};
class ContinuedAttention : public AttentionConformance {};

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

// A row sees no later key.
bool is_causal(const AttentionCase& c) { return c.causal; }
// Rows keep their keys if the sequence is cut behind them.
bool can_continue(const AttentionCase& c) { return c.causal && c.align == Align::bottom_right; }
INSTANTIATE_TEST_SUITE_P(All, AttentionConformance, every_implementation_on(attention_table()),
                         attention_name);
INSTANTIATE_TEST_SUITE_P(All, CausalAttention, every_implementation_on(only(is_causal)),
                         attention_name);
INSTANTIATE_TEST_SUITE_P(All, ContinuedAttention, every_implementation_on(only(can_continue)),
                         attention_name);

}  // namespace
}  // namespace packattn::test
