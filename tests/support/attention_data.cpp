// SPDX-License-Identifier: Apache-2.0
#include "support/attention_data.h"

#include <algorithm>
#include <cmath>

#include "support/random.h"
#include "support/scalar.h"

namespace packattn::test {
namespace {

std::vector<float> normals(Random& random, std::int64_t count, DType dtype, double deviation) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(rounded(dtype, deviation * random.normal()));
  }
  return values;
}

std::vector<float> make_slopes(Random& random, std::int64_t heads) {
  std::vector<float> slopes(static_cast<std::size_t>(heads));
  for (float& slope : slopes) slope = static_cast<float>(0.5 * random.uniform());
  return slopes;
}

std::vector<float> slice(const std::vector<float>& rows, std::int64_t width, std::int64_t begin,
                         std::int64_t end) {
  return {rows.begin() + begin * width, rows.begin() + end * width};
}

}  // namespace

AttentionData::AttentionData(const AttentionCase& c) : shape(c) {
  // Each sequence has a stream of its own, so that leaving one out does not change the others.
  const std::uint64_t seed = seed_of(c.name);
  for (std::size_t n = 0; n < c.lengths_q.size(); ++n) {
    Random random(seed + 1 + n);
    AttentionSequence s{.lq = c.q_length(n), .lk = c.k_length(n)};
    s.q = normals(random, s.lq * c.heads_q * c.head_dim, c.dtype, c.magnitude);
    s.k = normals(random, s.lk * c.heads_k * c.head_dim, c.dtype, 1);
    s.v = normals(random, s.lk * c.heads_k * c.dv(), c.dtype, 1);
    if (c.slopes == Slopes::per_sequence) s.slopes = make_slopes(random, c.heads_q);
    sequences.push_back(std::move(s));
  }
  Random random(seed);
  if (c.slopes == Slopes::per_head) slopes = make_slopes(random, c.heads_q);
  if (c.sinks) sinks = normals(random, c.heads_q, DType::f32, 2);
}

AttentionData AttentionData::only(const std::vector<std::size_t>& order) const {
  AttentionData part = *this;
  part.sequences.clear();
  for (const std::size_t n : order) part.sequences.push_back(sequences[n]);
  part.shape.form = Form::contiguous;
  part.shape.boundaries = Boundaries::cu_int32;
  return part;
}

AttentionSequence AttentionData::cut(std::size_t n, std::int64_t q_begin, std::int64_t q_end,
                                     std::int64_t k_begin, std::int64_t k_end) const {
  const AttentionSequence& s = sequences[n];
  AttentionSequence part{.lq = q_end - q_begin, .lk = k_end - k_begin};
  part.q = slice(s.q, shape.heads_q * shape.head_dim, q_begin, q_end);
  part.k = slice(s.k, shape.heads_k * shape.head_dim, k_begin, k_end);
  part.v = slice(s.v, shape.heads_k * shape.dv(), k_begin, k_end);
  part.slopes = s.slopes;
  return part;
}

AttentionOracle AttentionData::expected(std::size_t n) const {
  const AttentionSequence& s = sequences[n];
  AttentionOracleInput in{.lq = s.lq,
                          .lk = s.lk,
                          .hq = shape.heads_q,
                          .hk = shape.heads_k,
                          .d = shape.head_dim,
                          .dv = shape.dv()};
  in.q = s.q.data();
  in.k = s.k.data();
  in.v = s.v.data();
  in.scale = shape.scale.value_or(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  in.softcap = shape.softcap;
  in.causal = shape.causal;
  in.align = shape.align;
  in.window = shape.window;
  if (shape.slopes == Slopes::per_head) in.slopes = slopes.data();
  if (shape.slopes == Slopes::per_sequence) in.slopes = s.slopes.data();
  if (shape.sinks) in.sinks = sinks.data();
  return attention_oracle(in);
}

std::string describe(const AttentionCase& c, std::size_t sequence) {
  return c.name + ", sequence " + std::to_string(sequence);
}

}  // namespace packattn::test
