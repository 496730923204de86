// SPDX-License-Identifier: Apache-2.0
// The two forms of KDA beside each other: every chunked implementation against every recurrent one.
#include <gtest/gtest.h>

#include "unit/kda_support.h"

namespace packattn::test {
namespace {

class KdaForms : public testing::TestWithParam<KdaImplementationName> {
 protected:
  static KdaCase run(KdaCase c, const KdaImplementationName& which) {
    run_kda(which.op, c.args(), c.batch(), c.options, {.implementation = which.name});
    return c;
  }
  /// What the parameter computes is what every recurrence computes.
  static void expect_the_recurrence(const KdaCase& c) {
    const KdaCase chunked = run(c, GetParam());
    for (const auto& recurrence : kda_implementations({Op::kda_recurrent})) {
      const KdaCase serial = run(c, recurrence);
      EXPECT_LT(relative_error(chunked.out, values(serial.out)), 5e-6) << recurrence.name;
      EXPECT_LT(relative_error(chunked.final, values(serial.final)), 5e-6) << recurrence.name;
    }
  }
  static std::vector<double> values(const Owned& x) {
    std::vector<double> all;
    for (std::int64_t i = 0; i < x.numel(); ++i) all.push_back(x[i]);
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(, KdaForms, testing::ValuesIn(kda_implementations({Op::kda_chunk})),
                         kda_test_name);

TEST_P(KdaForms, AgreeAroundTheEdgesOfChunks) {
  for (const std::int64_t length : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 500}) {
    SCOPED_TRACE(length);
    expect_the_recurrence(KdaCase({.lengths = {length}, .K = 40, .V = 72}));
  }
}

TEST_P(KdaForms, AgreeForAnyGate) {
  for (const float gate : {0.0F, -1e-4F, -0.3F, -6.0F, -88.0F, -1000.0F}) {
    SCOPED_TRACE(gate);
    KdaCase every({.lengths = {70, 33}, .K = 40, .V = 72});
    every.g.fill([&](std::int64_t) { return gate; });
    expect_the_recurrence(every);
    KdaCase some({.lengths = {70, 33}, .K = 40, .V = 72});
    some.g.fill([&](std::int64_t i) { return i % 37 == 5 ? gate : -0.01F; });
    expect_the_recurrence(some);
  }
}

TEST_P(KdaForms, AgreeForIdenticalKeys) {
  KdaCase c({.lengths = {16, 70}, .K = 40, .V = 72});
  c.k.fill([](std::int64_t i) { return (i % 40 % 2 == 0 ? 1.0F : -1.0F) / std::sqrt(40.0F); });
  c.beta.fill([](std::int64_t) { return 1.0F; });
  c.g.fill([](std::int64_t) { return 0.0F; });
  expect_the_recurrence(c);
}

TEST_P(KdaForms, PrefillInChunksThenDecodeTokenByToken) {
  constexpr std::int64_t prefill = 67, steps = 4, T = prefill + steps;
  const KdaCase whole({.lengths = {T}, .K = 40, .V = 72});
  const auto piece = [&](std::int64_t begin, std::int64_t length, const Owned& state) {
    KdaCase part({.lengths = {length}, .K = 40, .V = 72});
    const auto take = [&](const Owned& from, Owned& to) {
      const std::int64_t row = from.numel() / T;
      to.fill([&](std::int64_t i) { return from[begin * row + i]; });
    };
    take(whole.q, part.q), take(whole.k, part.k), take(whole.v, part.v);
    take(whole.g, part.g), take(whole.beta, part.beta);
    part.initial = state;
    return part;
  };
  for (const auto& recurrence : kda_implementations({Op::kda_recurrent})) {
    const KdaCase expected = run(whole, recurrence);
    KdaCase part = run(piece(0, prefill, whole.initial), GetParam());
    for (std::int64_t t = prefill; t < T; ++t) {
      part = run(piece(t, 1, part.final), recurrence);
      const std::int64_t row = part.out.numel();
      std::vector<double> out;
      for (std::int64_t i = 0; i < row; ++i) out.push_back(expected.out[t * row + i]);
      EXPECT_LT(relative_error(part.out, out), 5e-6) << recurrence.name << ", token " << t;
    }
    EXPECT_LT(relative_error(part.final, values(expected.final)), 5e-6) << recurrence.name;
  }
}

}  // namespace
}  // namespace packattn::test
