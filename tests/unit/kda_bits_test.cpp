// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include <gtest/gtest.h>

#include "unit/kda_support.h"

namespace packattn::test {
namespace {

class KdaBits : public testing::TestWithParam<KdaImplementationName> {
 protected:
  void run(KdaCase& c, int threads = 1) {
    run_kda(GetParam().op, c.args(), c.batch(), c.options,
            {.threads = threads, .implementation = GetParam().name});
  }
};

INSTANTIATE_TEST_SUITE_P(, KdaBits, testing::ValuesIn(kda_implementations()), kda_test_name);

/// Rows [begin, end) of a [1, T, ...] tensor; or states of a [N, ...] one.
std::vector<std::byte> rows(const Owned& x, std::int64_t count, std::int64_t begin,
                            std::int64_t end) {
  const std::size_t row = x.bytes().size() / static_cast<std::size_t>(count);
  return {x.bytes().begin() + begin * static_cast<std::ptrdiff_t>(row),
          x.bytes().begin() + end * static_cast<std::ptrdiff_t>(row)};
}

/// Sequence n of `whole` as a call of its own.
KdaCase alone(const KdaCase& whole, std::size_t n) {
  KdaShape shape = whole.s;
  shape.lengths = {whole.s.lengths[n]};
  KdaCase part(shape);
  part.options = whole.options;
  const std::int64_t start = std::accumulate(
      whole.s.lengths.begin(), whole.s.lengths.begin() + static_cast<int>(n), std::int64_t{0});
  const auto take = [&](const Owned& from, Owned& to) {
    const std::int64_t row = from.numel() / std::max<std::int64_t>(1, whole.T);
    to.fill([&](std::int64_t i) { return from[start * row + i]; });
  };
  take(whole.q, part.q);
  take(whole.k, part.k);
  take(whole.v, part.v);
  take(whole.g, part.g);
  take(whole.beta, part.beta);
  const std::int64_t state = part.initial.numel();
  part.initial.fill(
      [&](std::int64_t i) { return whole.initial[static_cast<std::int64_t>(n) * state + i]; });
  return part;
}

TEST_P(KdaBits, PackedEqualsAloneInAnyOrder) {
  const KdaShape shape{.lengths = {33, 0, 1, 100, 17, 64}, .K = 24, .V = 40};
  KdaCase whole(shape);
  run(whole, 2);
  std::int64_t start = 0;
  for (std::size_t n = 0; n < shape.lengths.size(); ++n) {
    KdaCase part = alone(whole, n);
    run(part);
    const auto index = static_cast<std::int64_t>(n);
    EXPECT_EQ(part.out.bytes(), rows(whole.out, whole.T, start, start + shape.lengths[n])) << n;
    EXPECT_EQ(part.final.bytes(), rows(whole.final, 6, index, index + 1)) << n;
    start += shape.lengths[n];
  }
}

TEST_P(KdaBits, ThreadsAndRepetitionChangeNothing) {
  const KdaShape shape{.lengths = {300, 5}, .HV = 1, .K = 32, .V = 200};
  KdaCase first(shape);
  run(first);
  for (const int threads : {1, 2, 3, 8}) {
    KdaCase again(shape);
    run(again, threads);
    EXPECT_EQ(again.out.bytes(), first.out.bytes()) << threads;
    EXPECT_EQ(again.final.bytes(), first.final.bytes()) << threads;
  }
}

TEST_P(KdaBits, MemoryFollowsTheThreadsAndNotTheTokens) {
  const auto bytes = [&](std::vector<std::int64_t> lengths, int threads) {
    KdaCase c({.lengths = std::move(lengths), .K = 24, .V = 40});
    const PackedBatch batch = c.batch();
    return kda_workspace_bytes(GetParam().op, c.args(), &batch, c.options,
                               {.threads = threads, .implementation = GetParam().name});
  };
  const std::size_t one = bytes({100}, 1);
  EXPECT_EQ(bytes({20000}, 1), one);
  EXPECT_EQ(bytes(std::vector<std::int64_t>(200, 3), 1), one);
  EXPECT_LE(bytes({20000, 100}, 4), 4 * one);
}

TEST_P(KdaBits, LaterTokensChangeNoEarlierRow) {
  const KdaShape shape{.lengths = {90}, .K = 24, .V = 40};
  KdaCase before(shape), after(shape);
  const std::int64_t cut = 53;
  for (Owned* x : {&after.q, &after.k, &after.v, &after.g, &after.beta}) {
    const std::int64_t row = x->numel() / 90;
    for (std::int64_t i = cut * row; i < x->numel(); ++i) x->set(i, -1e3F * (*x)[i] * (*x)[i]);
  }
  run(before);
  run(after);
  EXPECT_EQ(rows(before.out, 90, 0, cut), rows(after.out, 90, 0, cut));
}

TEST_P(KdaBits, PrefillInPiecesThroughTheState) {
  const KdaShape shape{.lengths = {200}, .K = 24, .V = 40};
  // Exact at every token for the recurrence in fp32, at multiples of the chunk for the chunked
  // form; the reference rounds its fp64 state when it stores it.
  const bool reference = GetParam().name.starts_with("ref/");
  for (const std::int64_t cut : GetParam().op == Op::kda_chunk
                                    ? std::vector<std::int64_t>{64, 128}
                                    : std::vector<std::int64_t>{1, 64, 77}) {
    KdaCase whole(shape);
    run(whole);
    const KdaShape halves{.lengths = {cut, 200 - cut}, .K = 24, .V = 40};
    KdaCase both(halves);
    both.q = whole.q, both.k = whole.k, both.v = whole.v, both.g = whole.g, both.beta = whole.beta;
    KdaCase head = alone(both, 0), tail = alone(both, 1);
    head.initial = whole.initial;
    run(head);
    tail.initial = head.final;
    run(tail);
    if (reference) {
      std::vector<double> expected;
      for (std::int64_t i = 0; i < whole.final.numel(); ++i) expected.push_back(whole.final[i]);
      EXPECT_LT(relative_error(tail.final, expected), 1e-6);
    } else {
      EXPECT_EQ(head.out.bytes(), rows(whole.out, 200, 0, cut));
      EXPECT_EQ(tail.out.bytes(), rows(whole.out, 200, cut, 200));
      EXPECT_EQ(tail.final.bytes(), whole.final.bytes());
    }
  }
}

TEST_P(KdaBits, PrefillThenDecode) {
  const KdaShape shape{.lengths = {70}, .K = 24, .V = 40};
  KdaCase whole(shape);
  run(whole);
  const KdaShape pieces{.lengths = {67, 1, 1, 1}, .K = 24, .V = 40};
  KdaCase all(pieces);
  all.q = whole.q, all.k = whole.k, all.v = whole.v, all.g = whole.g, all.beta = whole.beta;
  Owned state = whole.initial;
  std::int64_t row = 0;
  for (std::size_t n = 0; n < 4; ++n) {
    KdaCase piece = alone(all, n);
    piece.initial = state;
    run(piece);
    state = piece.final;
    std::vector<double> expected;
    const std::int64_t width = whole.out.numel() / 70;
    for (std::int64_t i = 0; i < piece.out.numel(); ++i) {
      expected.push_back(whole.out[row * width + i]);
    }
    EXPECT_LT(relative_error(piece.out, expected), 2e-6);
    row += pieces.lengths[n];
  }
}

TEST_P(KdaBits, WhatBelongsToOthersIsNeverSeen) {
  // Sequence 1 is NaN throughout; so are the rows between and after, a gap and a tail.
  const std::vector<std::int64_t> starts{0, 20, 50}, lengths{17, 20, 30};
  KdaShape shape{.lengths = {100}, .K = 24, .V = 40};
  const auto run_with = [&](float poison) {
    KdaCase c(shape);
    c.initial = Owned(DType::f32, {3, 2, 24, 40}).fill([](std::int64_t i) { return float(i % 5); });
    c.final = Owned(DType::f32, {3, 2, 24, 40});
    const auto owned = [](std::int64_t t) { return t < 17 || (t >= 50 && t < 80); };
    for (Owned* x : {&c.q, &c.k, &c.v, &c.g, &c.beta}) {
      const std::int64_t row = x->numel() / 100;
      for (std::int64_t i = 0; i < x->numel(); ++i) {
        if (!owned(i / row)) x->set(i, poison);
      }
    }
    c.out.fill([](std::int64_t) { return 7; });
    run_kda(GetParam().op, c.args(), PackedBatch::from_starts_and_lengths(starts, lengths),
            c.options, {.threads = 2, .implementation = GetParam().name});
    return c;
  };
  const KdaCase clean = run_with(-0.5F), poisoned = run_with(NAN);
  EXPECT_EQ(rows(clean.out, 100, 0, 20), rows(poisoned.out, 100, 0, 20));
  EXPECT_EQ(rows(clean.out, 100, 40, 100), rows(poisoned.out, 100, 40, 100));
  EXPECT_EQ(rows(clean.final, 3, 0, 1), rows(poisoned.final, 3, 0, 1));
  EXPECT_EQ(rows(clean.final, 3, 2, 3), rows(poisoned.final, 3, 2, 3));
  for (const std::int64_t t : {17, 18, 19, 40, 49, 80, 99}) {
    for (std::int64_t i = 0; i < 80; ++i) EXPECT_EQ(poisoned.out[t * 80 + i], 7) << t;
  }
  EXPECT_TRUE(std::isnan(poisoned.out[21 * 80]));
}

}  // namespace
}  // namespace packattn::test
