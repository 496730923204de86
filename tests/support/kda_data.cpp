// SPDX-License-Identifier: Apache-2.0
#include "support/kda_data.h"

#include <cmath>

#include "support/random.h"
#include "support/scalar.h"

namespace packattn::test {
namespace {

using Values = std::vector<float>;

Values normals(Random& random, std::int64_t count, DType dtype, double deviation = 1) {
  Values values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(rounded(dtype, deviation * random.normal()));
  }
  return values;
}

// Keys of length 1, so that beta |k|^2 stays within what the accuracy is promised for.
Values keys(Random& random, std::int64_t rows, std::int64_t width, const KdaCase& c) {
  const Values shared = normals(random, width, DType::f64);
  Values values;
  for (std::int64_t r = 0; r < rows; ++r) {
    Values row = normals(random, width, DType::f64);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (c.numbers == KdaNumbers::collinear) row[i] = shared[i];
      if (c.numbers == KdaNumbers::nearly_collinear) row[i] = shared[i] + 0.01F * row[i];
    }
    double norm = 0;
    for (const float x : row) norm += static_cast<double>(x) * x;
    // With the normalisation inside the call, any length will do.
    const double length =
        c.options.l2norm ? 1.0 / static_cast<double>(random.between(1, 4)) : std::sqrt(norm);
    for (const float x : row) {
      values.push_back(static_cast<float>(rounded(c.dtype, x / std::max(length, 0.25))));
    }
  }
  return values;
}

double gate(Random& random, const KdaCase& c) {
  if (c.options.gate != GateKind::given) return 2 * random.normal();
  switch (c.numbers) {
    case KdaNumbers::mild: return -0.2 * random.uniform();
    case KdaNumbers::constant: return c.gate_value;
    case KdaNumbers::interrupted: return -0.2 * random.uniform();
    case KdaNumbers::wild: return -std::pow(10, random.uniform() * 8 - 5);
    case KdaNumbers::collinear: return 0;
    case KdaNumbers::nearly_collinear: return -0.03 + 0.02 * random.uniform();
  }
  return 0;
}

Values gates(Random& random, const KdaCase& c, std::int64_t tokens) {
  const std::int64_t row = c.value_heads * (c.gate_per_head ? 1 : c.key_dim);
  Values values;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const bool interrupt = c.numbers == KdaNumbers::interrupted && random.chance(0.1);
    for (std::int64_t i = 0; i < row; ++i) {
      values.push_back(
          static_cast<float>(rounded(c.gate_dtype, interrupt ? -1000 : gate(random, c))));
    }
  }
  return values;
}

Values betas(Random& random, const KdaCase& c, std::int64_t tokens) {
  Values values =
      normals(random, tokens * c.value_heads * (c.beta_per_channel ? c.value_dim : 1), DType::f32);
  for (float& value : values) {
    const bool one =
        c.numbers == KdaNumbers::collinear || c.numbers == KdaNumbers::nearly_collinear;
    if (c.options.beta == BetaKind::given) {
      value = one ? 1 : static_cast<float>(random.uniform());
    }
    value = static_cast<float>(rounded(c.beta_dtype, value));
  }
  return values;
}

}  // namespace

KdaData::KdaData(const KdaCase& c) : shape(c) {
  const std::uint64_t seed = seed_of(c.name);
  for (std::size_t n = 0; n < c.lengths.size(); ++n) {
    Random random(seed + 1 + n);
    const std::int64_t t = c.lengths[n];
    KdaSequence s{.t = t};
    s.q = normals(random, t * c.heads * c.key_dim, c.dtype);
    s.k = keys(random, t * c.heads, c.key_dim, c);
    s.v = normals(random, t * c.value_heads * c.value_dim, c.dtype);
    s.g = gates(random, c, t);
    s.beta = betas(random, c, t);
    if (c.reads_state()) s.initial = normals(random, state_size(), c.state_dtype, 0.5);
    sequences.push_back(std::move(s));
  }
  Random random(seed);
  if (c.A_log) A_log = normals(random, c.value_heads, DType::f32, 0.7);
  if (c.bias != Bias::none) dt_bias = normals(random, c.value_heads * c.key_dim, DType::f32);
}

KdaData KdaData::only(const std::vector<std::size_t>& order) const {
  KdaData part = *this;
  part.sequences.clear();
  for (const std::size_t n : order) part.sequences.push_back(sequences[n]);
  part.shape.form = Form::contiguous;
  part.shape.boundaries = Boundaries::cu_int32;
  part.shape.rows = false;
  part.shape.slots = KdaSlots::none;
  part.shape.null_slots = false;
  part.shape.state = shape.reads_state() ? KdaState::separate : KdaState::final_only;
  if (!part.shape.options.state_layout) part.shape.options.state_layout = StateLayout::k_first;
  return part;
}

KdaSequence KdaData::cut(std::size_t n, std::int64_t begin, std::int64_t end,
                         std::vector<float> initial) const {
  const KdaSequence& s = sequences[n];
  const auto rows = [&](const Values& values) -> Values {
    const auto width = s.t == 0 ? 0 : static_cast<std::int64_t>(values.size()) / s.t;
    return {values.begin() + begin * width, values.begin() + end * width};
  };
  return {.t = end - begin,
          .q = rows(s.q),
          .k = rows(s.k),
          .v = rows(s.v),
          .g = rows(s.g),
          .beta = rows(s.beta),
          .initial = std::move(initial)};
}

KdaOracle KdaData::expected(std::size_t n, bool every_state) const {
  const KdaSequence& s = sequences[n];
  KdaOracleInput in{.t = s.t,
                    .h = shape.heads,
                    .hv = shape.value_heads,
                    .k_dim = shape.key_dim,
                    .v_dim = shape.value_dim};
  in.q = s.q.data();
  in.k = s.k.data();
  in.v = s.v.data();
  in.g = s.g.data();
  in.beta = s.beta.data();
  if (!A_log.empty()) in.A_log = A_log.data();
  if (!dt_bias.empty()) in.dt_bias = dt_bias.data();
  if (!s.initial.empty()) in.initial = s.initial.data();
  in.gate_per_head = shape.gate_per_head;
  in.beta_per_channel = shape.beta_per_channel;
  in.options = shape.options;
  return kda_oracle(in, every_state);
}

}  // namespace packattn::test
