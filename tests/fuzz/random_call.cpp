// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fuzz/call.h"
#include "support/boundaries.h"

namespace packattn::test::fuzz {
namespace {

using Lengths = std::vector<std::int64_t>;

Lengths random_lengths(Random& random, std::int64_t count, std::int64_t longest) {
  Lengths lengths;
  for (std::int64_t n = 0; n < count; ++n) lengths.push_back(random.between(0, longest));
  return lengths;
}

DType float_type(Random& random) {
  return random.pick(std::vector{DType::f32, DType::f32, DType::f16, DType::bf16});
}
DType integer_type(Random& random) { return random.chance(0.5) ? DType::i32 : DType::i64; }

std::int64_t sum(const Lengths& lengths) { return running_ends(lengths).back(); }

Integers mask_of(const Lengths& lengths) {
  const std::int64_t width =
      1 + (lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()));
  Integers mask{.values = {}, .dtype = DType::boolean};
  for (const std::int64_t length : lengths) {
    for (std::int64_t s = 0; s < width; ++s) mask.values.push_back(s < length ? 1 : 0);
  }
  mask.shape = {static_cast<std::int64_t>(lengths.size()), width};
  return mask;
}

/// One side's boundaries in a random form; the rows that the tensors of the side have then.
std::int64_t add_side(Random& random, Call& call, const Lengths& lengths, const std::string& side) {
  const Integers ends{.values = running_ends(lengths), .dtype = integer_type(random)};
  switch (random.between(0, 5)) {
    case 0:
      call.integers["lengths_" + side] = {.values = lengths, .dtype = integer_type(random)};
      break;
    case 1: {
      const Gaps gaps = with_gaps(lengths, random.next());
      call.integers["starts_" + side] = {.values = gaps.starts, .dtype = integer_type(random)};
      call.integers["lengths_" + side] = {.values = lengths, .dtype = integer_type(random)};
      return gaps.rows;
    }
    case 2: call.integers["padding_mask_" + side] = mask_of(lengths); break;
    case 3:
      call.integers["host_" + side] = {.values = ends.values, .dtype = integer_type(random)};
      call.integers["cu_seqlens_" + side] = ends;
      break;
    case 4:
      call.integers["cu_seqlens_" + side] = ends;
      call.integers["lengths_" + side] = {.values = lengths, .dtype = integer_type(random)};
      break;
    default: call.integers["cu_seqlens_" + side] = ends;
  }
  return sum(lengths);
}

void attention_call(Random& random, Call& call) {
  const std::int64_t count = random.between(0, 3);
  const Lengths q = random_lengths(random, count, 5);
  const Lengths k = random_lengths(random, count, 6);
  const std::int64_t heads_k = random.pick(Lengths{1, 2, 4});
  const std::int64_t heads_q = heads_k * random.between(1, 2);
  const std::int64_t dim = random.pick(Lengths{8, 16, 24});
  const std::int64_t dv = random.chance(0.8) ? dim : 8;
  const DType dtype = float_type(random);
  const bool shared = random.chance(0.3);
  const bool paged = !shared && random.chance(0.3);
  const bool positions = shared && random.chance(0.2);
  std::int64_t rows_q = sum(q);
  if (positions) {
    call.integers["position_ids"] = {.values = {0, 1, 2, 0, 0, 1}, .dtype = integer_type(random)};
    rows_q = 6;
  } else {
    rows_q = add_side(random, call, q, "q");
  }
  std::int64_t rows_k = rows_q;
  if (paged) {
    const std::int64_t page = random.between(1, 4);
    constexpr std::int64_t pages = 7, width = 6;
    call.integers["seqlens_k"] = {.values = k, .dtype = integer_type(random)};
    Integers table{.values = {}, .shape = {count, width}};
    for (std::int64_t i = 0; i < count * width; ++i)
      table.values.push_back(random.between(0, pages - 1));
    call.integers["block_table"] = table;
    call.tensors["k"] = {dtype, {pages, page, heads_k, dim}};
    call.tensors["v"] = {dtype, {pages, page, heads_k, dv}};
  } else {
    if (!shared) rows_k = add_side(random, call, k, "k");
    call.tensors["k"] = {dtype, {rows_k, heads_k, dim}};
    call.tensors["v"] = {dtype, {rows_k, heads_k, dv}};
  }
  if (random.chance(0.1)) {
    call.capacity = true;
    rows_q += 2;
    if (shared) {
      call.tensors["k"].shape[0] += 2;
      call.tensors["v"].shape[0] += 2;
    }
  }
  const std::int64_t sequences = positions ? 3 : count;
  call.tensors["q"] = {dtype, {rows_q, heads_q, dim}};
  call.tensors["out"] = {random.chance(0.3) ? DType::f32 : dtype, {rows_q, heads_q, dv}};
  if (random.chance(0.7)) call.tensors["lse"] = {DType::f32, {heads_q, rows_q}};
  if (random.chance(0.3)) call.tensors["sinks"] = {DType::f32, {heads_q}};
  if (random.chance(0.4)) {
    call.tensors["alibi_slopes"] = random.chance(0.5) ? Tensor{DType::f32, {heads_q}}
                                                      : Tensor{DType::f32, {sequences, heads_q}};
  }
  call.attention.causal = random.chance(0.5);
  if (random.chance(0.3)) call.attention.align = Align::top_left;
  if (random.chance(0.3)) call.attention.window.left = random.between(0, 4);
  if (random.chance(0.3)) call.attention.window.right = random.between(0, 4);
  if (random.chance(0.3)) call.attention.softcap = 3;
  if (random.chance(0.3)) call.attention.softmax_scale = 0.3;
}

void kda_state(Random& random, Call& call, const Lengths& lengths, const Lengths& state) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  const bool columns = call.kind == Kind::kda_recurrent && random.chance(0.5);
  const bool pooled = columns || random.chance(0.5);
  const std::int64_t width = columns ? 4 : 1;
  const std::int64_t rows = pooled ? count * width * 2 + 2 : count;
  const DType dtype = random.chance(0.8) ? DType::f32 : DType::bf16;
  Lengths shape{rows, state[0], state[1], state[2]};
  if (random.chance(0.5)) {
    call.kda.state_layout = StateLayout::v_first;
    std::swap(shape[2], shape[3]);
  } else {
    call.kda.state_layout = StateLayout::k_first;
  }
  if (random.chance(0.6)) {
    call.tensors["state"] = {dtype, shape};
  } else {
    call.tensors["initial_state"] = {dtype, shape};
    call.tensors["final_state"] = {dtype, shape};
  }
  if (!pooled) return;
  const auto order = random.permutation(rows);
  const auto slots = [&](std::int64_t from) {
    Integers s{.values = {order.begin() + from, order.begin() + from + count * width},
               .dtype = integer_type(random)};
    if (columns) s.shape = {count, width};
    return s;
  };
  if (random.chance(0.5)) {
    call.integers["slots"] = slots(0);
  } else {
    call.integers["read_slots"] = slots(0);
    call.integers["write_slots"] = slots(count * width);
  }
  if (columns && random.chance(0.7)) {
    Integers accepted{.values = {}, .dtype = integer_type(random)};
    for (std::int64_t n = 0; n < count; ++n) accepted.values.push_back(random.between(1, width));
    call.integers["num_accepted_tokens"] = accepted;
  }
}

void kda_call(Random& random, Call& call) {
  Lengths lengths = random_lengths(random, random.between(0, 3), 4);
  const std::int64_t heads = random.between(1, 2);
  const std::int64_t value_heads = heads * random.between(1, 2);
  const std::int64_t k = random.pick(Lengths{8, 16}), v = random.pick(Lengths{8, 24});
  const DType dtype = float_type(random);
  std::int64_t rows = 1;
  std::int64_t tokens = 0;
  call.boundaries = random.chance(0.7);
  if (call.boundaries) {
    tokens = add_side(random, call, lengths, "q");
  } else {
    rows = random.between(1, 3);
    tokens = random.between(1, 4);
    lengths.assign(static_cast<std::size_t>(rows), tokens);
  }
  call.tensors["q"] = call.tensors["k"] = {dtype, {rows, tokens, heads, k}};
  call.tensors["v"] = {dtype, {rows, tokens, value_heads, v}};
  call.tensors["out"] = {random.chance(0.3) ? DType::f32 : dtype, {rows, tokens, value_heads, v}};
  const auto side_type = [&] { return random.chance(0.6) ? DType::f32 : dtype; };
  call.tensors["g"] = random.chance(0.7) ? Tensor{side_type(), {rows, tokens, value_heads, k}}
                                         : Tensor{side_type(), {rows, tokens, value_heads}};
  call.tensors["beta"] = call.kind == Kind::kda_recurrent && random.chance(0.3)
                             ? Tensor{side_type(), {rows, tokens, value_heads, v}}
                             : Tensor{side_type(), {rows, tokens, value_heads}};
  call.kda.l2norm = true;  // any key is in the domain then
  call.kda.gate = random.pick(
      std::vector{GateKind::given, GateKind::given, GateKind::softplus, GateKind::bounded});
  call.kda.beta =
      random.pick(std::vector{BetaKind::given, BetaKind::sigmoid, BetaKind::two_sigmoid});
  if (call.kda.gate == GateKind::softplus ||
      (call.kda.gate == GateKind::bounded && random.chance(0.5))) {
    call.tensors["A_log"] = {DType::f32, {value_heads}};
  }
  if (call.kda.gate != GateKind::given && random.chance(0.5)) {
    call.tensors["dt_bias"] = random.chance(0.5) ? Tensor{DType::f32, {value_heads, k}}
                                                 : Tensor{DType::f32, {value_heads * k}};
  }
  call.kda.chunk_size = random.pick(std::vector{16, 32, 64});
  if (random.chance(0.6)) kda_state(random, call, lengths, {value_heads, k, v});
  if (call.kind == Kind::kda_chunk && call.kda.state_layout && random.chance(0.3)) {
    const auto chunks = std::count_if(lengths.begin(), lengths.end(), [](auto n) { return n > 0; });
    Lengths shape{chunks, value_heads, k, v};
    if (*call.kda.state_layout == StateLayout::v_first) std::swap(shape[2], shape[3]);
    call.tensors["chunk_states"] = {DType::f32, shape};
  }
}

void merge_call(Random& random, Call& call) {
  const Lengths shape{random.between(0, 5), random.between(1, 4), 8};
  const DType dtype = float_type(random);
  call.boundaries = false;
  call.tensors["out_a"] = call.tensors["out_b"] = call.tensors["out"] = {dtype, shape};
  call.tensors["lse_a"] = call.tensors["lse_b"] =
      call.tensors["lse"] = {DType::f32, {shape[1], shape[0]}};
}

void pack_call(Random& random, Call& call) {
  const Lengths lengths = random_lengths(random, random.between(0, 3), 4);
  const std::int64_t rows = add_side(random, call, lengths, "q");
  std::int64_t width = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  if (call.ints("padding_mask_q") != nullptr) ++width;
  const DType dtype = float_type(random);
  call.tensors["padded"] = {dtype, {static_cast<std::int64_t>(lengths.size()), width, 2, 3}};
  call.tensors["packed"] = {dtype, {rows, 2, 3}};
}

}  // namespace

bool is_output(const std::string& name) {
  return name == "out" || name == "lse" || name == "final_state" || name == "chunk_states" ||
         name == "state" || name == "residual_out";
}

Call random_call(Random& random) {
  Call call;
  call.threads = static_cast<int>(random.between(1, 3));
  call.kind = random.pick(std::vector{
      Kind::attention, Kind::attention, Kind::attention, Kind::kda_recurrent, Kind::kda_recurrent,
      Kind::kda_chunk, Kind::kda_chunk, Kind::kda_gate, Kind::l2norm, Kind::short_convolution,
      Kind::short_convolution, Kind::gated_rms_norm, Kind::merge, Kind::pack, Kind::unpack});
  switch (call.kind) {
    case Kind::attention: attention_call(random, call); break;
    case Kind::kda_recurrent:
    case Kind::kda_chunk: kda_call(random, call); break;
    case Kind::kda_gate:
    case Kind::l2norm:
    case Kind::short_convolution:
    case Kind::gated_rms_norm: random_layer(random, call); break;
    case Kind::merge: merge_call(random, call); break;
    default: pack_call(random, call);
  }
  return call;
}

}  // namespace packattn::test::fuzz
