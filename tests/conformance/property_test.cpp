// SPDX-License-Identifier: Apache-2.0
// The promises on random calls: any lengths, empty ones too, any options. The seed is printed;
// PACKATTN_TEST_SEED replays it.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "conformance/attention_promises.h"
#include "conformance/kda_promises.h"
#include "conformance/layer_promises.h"
#include "support/compare.h"
#include "support/coverage.h"
#include "support/random.h"

namespace packattn::test {
namespace {

[[maybe_unused]] const bool shapes_are_random = random_shapes = true;

int rounds() { return reduced_table() ? 8 : 40; }

std::vector<std::int64_t> random_lengths(Random& random, std::int64_t count) {
  std::vector<std::int64_t> lengths;
  // Half of them short or empty, the others up to a few tiles or chunks.
  for (std::int64_t n = 0; n < count; ++n) {
    lengths.push_back(random.chance(0.5) ? random.between(0, 4) : random.between(0, 150));
  }
  return lengths;
}

AttentionCase random_attention(const std::string& name) {
  Random random(seed_of(name));
  AttentionCase c{.name = name, .lengths_q = random_lengths(random, random.between(0, 6))};
  if (random.chance(0.5)) {
    c.lengths_k = random_lengths(random, static_cast<std::int64_t>(c.lengths_q.size()));
  }
  c.heads_k = random.between(1, 3);
  c.heads_q = c.heads_k * random.between(1, 3);
  c.head_dim = random.pick(std::vector<std::int64_t>{8, 16, 40, 64, 72, 80, 96, 128});
  if (random.chance(0.2)) c.value_dim = random.pick(std::vector<std::int64_t>{16, 64});
  c.dtype = random.pick(std::vector{DType::f32, DType::f16, DType::bf16});
  c.causal = random.chance(0.6);
  if (random.chance(0.3)) c.align = Align::top_left;
  if (random.chance(0.3)) c.window.left = random.between(0, 60);
  if (random.chance(0.2)) c.window.right = random.between(0, 60);
  if (random.chance(0.2)) c.softcap = 1 + 10 * random.uniform();
  c.slopes =
      random.pick(std::vector{Slopes::none, Slopes::none, Slopes::per_head, Slopes::per_sequence});
  c.sinks = random.chance(0.3);
  c.form =
      random.pick(std::vector{Form::contiguous, Form::wide, Form::heads_first, Form::odd_base});
  c.boundaries =
      random.pick(std::vector{Boundaries::cu_int32, Boundaries::lengths, Boundaries::starts,
                              Boundaries::capacity, Boundaries::padding_mask});
  if (random.chance(0.2)) {
    c.boundaries = Boundaries::paged;
    c.page_size = random.between(1, 70);
  }
  return c;
}

KdaCase random_kda(const std::string& name) {
  Random random(seed_of(name));
  KdaCase c{.name = name, .lengths = random_lengths(random, random.between(0, 4))};
  c.heads = random.between(1, 2);
  c.value_heads = c.heads * random.between(1, 2);
  c.key_dim = random.pick(std::vector<std::int64_t>{16, 40, 64, 128});
  c.value_dim = random.pick(std::vector<std::int64_t>{8, 24, 64, 128});
  c.dtype = random.pick(std::vector{DType::f32, DType::f16, DType::bf16});
  c.gate_per_head = random.chance(0.2);
  c.options.gate = random.pick(std::vector{GateKind::given, GateKind::softplus, GateKind::bounded});
  c.A_log = c.options.gate == GateKind::softplus ||
            (c.options.gate == GateKind::bounded && random.chance(0.5));
  if (c.options.gate != GateKind::given && random.chance(0.5)) c.bias = Bias::matrix;
  c.options.beta =
      random.pick(std::vector{BetaKind::given, BetaKind::sigmoid, BetaKind::two_sigmoid});
  c.options.l2norm = random.chance(0.5);
  c.options.chunk_size = random.pick(std::vector{16, 32, 64});
  c.options.state_layout = random.chance(0.5) ? StateLayout::k_first : StateLayout::v_first;
  c.state = random.pick(std::vector{KdaState::none, KdaState::in_place, KdaState::initial_only,
                                    KdaState::final_only, KdaState::separate});
  if (c.state == KdaState::in_place && random.chance(0.6)) {
    c.slots = random.chance(0.5) ? KdaSlots::shared : KdaSlots::split;
    c.null_slots = random.chance(0.5);
  }
  if (c.options.gate == GateKind::given && !c.gate_per_head) {
    c.numbers =
        random.pick(std::vector{KdaNumbers::mild, KdaNumbers::interrupted, KdaNumbers::wild});
  }
  c.form = random.pick(std::vector{Form::contiguous, Form::wide, Form::heads_first});
  c.boundaries =
      random.pick(std::vector{Boundaries::cu_int32, Boundaries::lengths, Boundaries::starts,
                              Boundaries::capacity, Boundaries::padding_mask});
  return c;
}

LayerCase random_layer(Op op, const std::string& name) {
  Random random(seed_of(name));
  LayerCase c{.name = name, .op = op, .lengths = random_lengths(random, random.between(0, 5))};
  const auto chance = [&](double p) { return random.chance(p); };
  if (op == Op::kda_gate) c.heads = random.between(1, 4);
  c.width = chance(0.2) ? random.between(1000, 3000) : random.between(1, 200);
  c.taps = random.between(1, 6);
  c.dtype = random.pick(std::vector{DType::f32, DType::f16, DType::bf16});
  if (chance(0.3)) c.out_dtype = DType::f32;
  if (chance(0.5)) c.side_dtype = c.dtype;
  const bool norm = op == Op::gated_rms_norm;
  c.weight = norm && chance(0.5);
  c.bias = (norm || c.convolves()) && chance(0.5);
  c.gate = norm && chance(0.5);
  c.residual = norm && chance(0.5);
  c.residual_out = norm && chance(0.5);
  if (chance(0.5)) c.activation = GateActivation::sigmoid;
  if (chance(0.5)) c.gate_kind = GateKind::bounded;
  if (op == Op::kda_gate && chance(0.5)) c.dt_bias = chance(0.5) ? Bias::matrix : Bias::flat;
  c.silu = chance(0.5);
  if (c.convolves()) {
    c.state = random.pick(std::vector{KdaState::none, KdaState::in_place, KdaState::initial_only,
                                      KdaState::final_only, KdaState::separate});
    c.slots = c.state != KdaState::none && chance(0.5);
    c.null_slots = c.slots && chance(0.5);
    c.boundaries = random.pick(std::vector{Boundaries::cu_int32, Boundaries::lengths,
                                           Boundaries::starts, Boundaries::capacity});
  }
  c.form = random.pick(std::vector{Form::contiguous, Form::wide, Form::odd_base});
  return c;
}

class AttentionProperties : public testing::TestWithParam<std::string> {};

TEST_P(AttentionProperties, OnRandomCalls) {
  for (int i = 0; i < rounds() && !HasFailure(); ++i) {
    const AttentionCase c =
        random_attention("seed_" + std::to_string(process_seed()) + "_" + std::to_string(i));
    SCOPED_TRACE(c.name);
    AttentionPromises promises{AttentionData(c), GetParam()};
    if (!promises.taken()) continue;
    promises.all();
  }
}

class KdaProperties : public testing::TestWithParam<std::pair<Op, std::string>> {};

TEST_P(KdaProperties, OnRandomCalls) {
  const auto& [op, implementation] = GetParam();
  for (int i = 0; i < rounds() / 2 && !HasFailure(); ++i) {
    const KdaCase c =
        random_kda("seed_" + std::to_string(process_seed()) + "_" + std::to_string(i));
    SCOPED_TRACE(c.name);
    KdaPromises promises{op, KdaData(c), implementation};
    if (!promises.taken()) continue;
    promises.all();
  }
}

class LayerProperties : public testing::TestWithParam<std::pair<Op, std::string>> {};

TEST_P(LayerProperties, OnRandomCalls) {
  const auto& [op, implementation] = GetParam();
  for (int i = 0; i < rounds() && !HasFailure(); ++i) {
    const LayerCase c =
        random_layer(op, "seed_" + std::to_string(process_seed()) + "_" + std::to_string(i));
    SCOPED_TRACE(c.name);
    LayerPromises promises{LayerData(c), implementation};
    if (!promises.taken()) continue;
    promises.all();
  }
}

std::vector<std::pair<Op, std::string>> implementations_of(const std::vector<Op>& ops) {
  std::vector<std::pair<Op, std::string>> all;
  for (const Op op : ops) {
    for (const std::string& name : implementations(op)) all.emplace_back(op, name);
  }
  return all;
}
std::string attention_name(const testing::TestParamInfo<std::string>& info) {
  return test_name(info.param);
}
std::string kda_name(const testing::TestParamInfo<std::pair<Op, std::string>>& info) {
  return test_name(info.param.second);
}
INSTANTIATE_TEST_SUITE_P(All, AttentionProperties,
                         testing::ValuesIn(implementations(Op::attention)), attention_name);
INSTANTIATE_TEST_SUITE_P(All, KdaProperties,
                         testing::ValuesIn(implementations_of({Op::kda_recurrent, Op::kda_chunk})),
                         kda_name);
INSTANTIATE_TEST_SUITE_P(All, LayerProperties,
                         testing::ValuesIn(implementations_of({Op::kda_gate, Op::l2norm,
                                                               Op::short_convolution,
                                                               Op::gated_rms_norm})),
                         kda_name);

}  // namespace
}  // namespace packattn::test
