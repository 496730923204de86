// SPDX-License-Identifier: Apache-2.0
#include "support/kda_case.h"

namespace packattn::test {
namespace {

using Lengths = std::vector<std::int64_t>;
using Table = std::vector<KdaCase>;

const Lengths mixed{5, 0, 1, 33, 17};
constexpr StateLayout k_first = StateLayout::k_first;
constexpr StateLayout v_first = StateLayout::v_first;

void add_lengths(Table& t) {
  for (const bool with_state : {false, true}) {
    const std::string suffix = with_state ? "_with_state" : "";
    const KdaState state = with_state ? KdaState::separate : KdaState::none;
    const auto add = [&](const char* name, Lengths lengths) {
      t.push_back({.name = name + suffix,
                   .lengths = std::move(lengths),
                   .options = {.state_layout = k_first},
                   .state = state});
    };
    add("plain", {5, 1, 17});
    add("no_sequences", {});
    add("empty_first", {0, 1});
    add("empty_last", {1, 0});
    add("only_empty", {0});
    add("edges_16", {1, 15, 16, 17});
    add("edges_64", {63, 64, 65});
    if (!reduced_table()) {
      add("edges_128", {127, 129});
      add("long", {500, 1000});
    }
  }
  t.push_back({.name = "rows", .lengths = {33, 33, 33}, .rows = true});
  t.push_back({.name = "rows_with_state",
               .lengths = {7, 7},
               .options = {.state_layout = v_first},
               .rows = true,
               .state = KdaState::in_place});
  for (const int chunk : {16, 32}) {
    t.push_back({.name = "chunk_size_" + std::to_string(chunk),
                 .lengths = {15, 0, 33, 70},
                 .options = {.state_layout = k_first, .chunk_size = chunk},
                 .state = KdaState::separate});
  }
}

void add_numbers(Table& t) {
  const auto add = [&](const char* name, std::int64_t length, double gate) {
    t.push_back({.name = name,
                 .lengths = {length, 3},
                 .key_dim = 128,
                 .options = {.state_layout = k_first},
                 .state = KdaState::separate,
                 .numbers = KdaNumbers::constant,
                 .gate_value = gate});
  };
  add("gate_-6", 16, -6);
  add("gate_-2", 64, -2);
  add("gate_-50", 40, -50);
  add("gate_-1000", 40, -1000);
  add("gate_-1", 2, -1);
  add("gate_0", 40, 0);
  for (const auto& [name, numbers] :
       {std::pair{"interrupted", KdaNumbers::interrupted}, std::pair{"wild", KdaNumbers::wild},
        std::pair{"nearly_collinear", KdaNumbers::nearly_collinear}}) {
    t.push_back({.name = name,
                 .lengths = {100, 40},
                 .options = {.state_layout = k_first},
                 .state = KdaState::separate,
                 .numbers = numbers});
  }
  t.push_back({.name = "collinear",
               .lengths = {16, 70},
               .options = {.state_layout = k_first},
               .state = KdaState::final_only,
               .numbers = KdaNumbers::collinear});
}

void add_kinds(Table& t) {
  for (const bool per_head : {false, true}) {
    const std::string suffix = per_head ? "_per_head" : "";
    t.push_back({.name = "given" + suffix, .lengths = mixed, .gate_per_head = per_head});
    for (const Bias bias : {Bias::none, Bias::matrix, Bias::flat}) {
      const std::string biased = bias == Bias::none     ? ""
                                 : bias == Bias::matrix ? "_bias_matrix"
                                                        : "_bias_flat";
      t.push_back({.name = "softplus" + biased + suffix,
                   .lengths = mixed,
                   .gate_per_head = per_head,
                   .A_log = true,
                   .bias = bias,
                   .options = {.gate = GateKind::softplus}});
      for (const bool a_log : {false, true}) {
        t.push_back({.name = std::string("bounded") + (a_log ? "_A_log" : "") + biased + suffix,
                     .lengths = mixed,
                     .gate_per_head = per_head,
                     .A_log = a_log,
                     .bias = bias,
                     .options = {.gate = GateKind::bounded}});
      }
    }
  }
  t.push_back({.name = "bounded_-3",
               .lengths = {70, 3},
               .A_log = true,
               .options = {.gate = GateKind::bounded, .lower_bound = -3}});
  t.push_back({.name = "bounded_-40",
               .lengths = {70, 3},
               .A_log = true,
               .options = {.gate = GateKind::bounded, .lower_bound = -40}});
  t.push_back({.name = "beta_sigmoid", .lengths = mixed, .options = {.beta = BetaKind::sigmoid}});
  t.push_back(
      {.name = "beta_two_sigmoid", .lengths = {70, 3}, .options = {.beta = BetaKind::two_sigmoid}});
  t.push_back({.name = "beta_per_channel", .lengths = mixed, .beta_per_channel = true});
  t.push_back({.name = "beta_per_channel_sigmoid",
               .lengths = mixed,
               .beta_per_channel = true,
               .options = {.beta = BetaKind::sigmoid}});
  t.push_back({.name = "l2norm", .lengths = mixed, .options = {.l2norm = true}});
  t.push_back({.name = "scale", .lengths = mixed, .options = {.scale = 0.5}});
  t.push_back({.name = "model_layer",
               .lengths = {40, 0, 21},
               .heads = 2,
               .value_heads = 4,
               .A_log = true,
               .bias = Bias::matrix,
               .options = {.gate = GateKind::softplus,
                           .beta = BetaKind::sigmoid,
                           .l2norm = true,
                           .state_layout = v_first},
               .state = KdaState::separate});
}

void add_shapes(Table& t) {
  t.push_back({.name = "grouped", .lengths = mixed, .heads = 2, .value_heads = 6});
  t.push_back({.name = "one_key_head", .lengths = mixed, .heads = 1, .value_heads = 3});
  for (const auto& [k, v] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1},
                                                                               {8, 16},
                                                                               {16, 8},
                                                                               {33, 7},
                                                                               {100, 72},
                                                                               {80, 96},
                                                                               {120, 160},
                                                                               {192, 80},
                                                                               {128, 128},
                                                                               {128, 64},
                                                                               {256, 24},
                                                                               {24, 256},
                                                                               {300, 40}}) {
    t.push_back({.name = "dims_" + std::to_string(k) + "_" + std::to_string(v),
                 .lengths = {20, 3},
                 .key_dim = k,
                 .value_dim = v,
                 .options = {.state_layout = k_first},
                 .state = KdaState::separate});
  }
  for (const Form form : {Form::wide, Form::heads_first, Form::odd_base, Form::odd_unit}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      t.push_back({.name = to_string(form) + "_" + to_string(dtype),
                   .lengths = {6, 0, 21},
                   .dtype = dtype,
                   .options = {.state_layout = v_first},
                   .state = KdaState::in_place,
                   .form = form});
    }
    t.push_back({.name = to_string(form) + "_one_head",
                 .lengths = {9},
                 .heads = 1,
                 .value_heads = 1,
                 .A_log = true,
                 .bias = Bias::matrix,
                 .options = {.gate = GateKind::bounded, .state_layout = k_first},
                 .state = KdaState::in_place,
                 .form = form});
  }
  for (const auto& [name, boundaries] :
       {std::pair{"cu_int64", Boundaries::cu_int64}, std::pair{"lengths", Boundaries::lengths},
        std::pair{"starts", Boundaries::starts}, std::pair{"capacity", Boundaries::capacity},
        std::pair{"padding_mask", Boundaries::padding_mask}}) {
    t.push_back({.name = name,
                 .lengths = mixed,
                 .options = {.state_layout = k_first},
                 .boundaries = boundaries,
                 .state = KdaState::separate});
  }
  t.push_back(
      {.name = "position_ids", .lengths = {5, 1, 18}, .boundaries = Boundaries::position_ids});
}

void add_dtypes(Table& t) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const std::string name = to_string(dtype);
    t.push_back({.name = name,
                 .lengths = {130, 0, 20},
                 .dtype = dtype,
                 .options = {.state_layout = k_first},
                 .state = KdaState::separate});
    t.push_back({.name = name + "_all_16_bit",
                 .lengths = {70, 20},
                 .dtype = dtype,
                 .gate_dtype = dtype,
                 .beta_dtype = dtype,
                 .options = {.state_layout = v_first},
                 .state = KdaState::separate});
    t.push_back(
        {.name = name + "_to_f32", .lengths = mixed, .dtype = dtype, .out_dtype = DType::f32});
    t.push_back({.name = name + "_wild",
                 .lengths = {100},
                 .dtype = dtype,
                 .options = {.state_layout = k_first},
                 .state = KdaState::separate,
                 .numbers = KdaNumbers::wild});
    t.push_back({.name = name + "_collinear",
                 .lengths = {70},
                 .dtype = dtype,
                 .options = {.state_layout = k_first},
                 .state = KdaState::final_only,
                 .numbers = KdaNumbers::collinear});
  }
  t.push_back({.name = "bf16_state",
               .lengths = mixed,
               .dtype = DType::bf16,
               .state_dtype = DType::bf16,
               .options = {.state_layout = k_first},
               .state = KdaState::in_place});
  t.push_back({.name = "f32_bf16_state",
               .lengths = mixed,
               .state_dtype = DType::bf16,
               .options = {.state_layout = v_first},
               .state = KdaState::separate});
}

void add_states(Table& t) {
  for (const StateLayout layout : {k_first, v_first}) {
    const std::string suffix = layout == k_first ? "_k_first" : "_v_first";
    const auto add = [&](const char* name, KdaState state, KdaSlots slots, bool nulls) {
      t.push_back({.name = name + suffix,
                   .lengths = mixed,
                   .value_heads = 4,
                   .options = {.state_layout = layout},
                   .state = state,
                   .slots = slots,
                   .null_slots = nulls});
    };
    add("in_place", KdaState::in_place, KdaSlots::none, false);
    add("initial_only", KdaState::initial_only, KdaSlots::none, false);
    add("final_only", KdaState::final_only, KdaSlots::none, false);
    add("pool", KdaState::in_place, KdaSlots::shared, false);
    add("pool_with_null", KdaState::in_place, KdaSlots::shared, true);
    add("pool_separate", KdaState::separate, KdaSlots::shared, true);
    add("split_slots", KdaState::in_place, KdaSlots::split, false);
    add("split_slots_with_null", KdaState::in_place, KdaSlots::split, true);
    add("split_pools", KdaState::separate, KdaSlots::split, false);
    t.push_back({.name = "columns" + suffix,
                 .lengths = {1, 4, 0, 3, 2},
                 .value_heads = 4,
                 .options = {.state_layout = layout},
                 .state = KdaState::in_place,
                 .slots = KdaSlots::columns});
    t.push_back({.name = "columns_with_null" + suffix,
                 .lengths = {1, 4, 3},
                 .options = {.state_layout = layout},
                 .state = KdaState::in_place,
                 .slots = KdaSlots::columns,
                 .null_slots = true});
    t.push_back({.name = "chunk_states" + suffix,
                 .lengths = {64, 0, 65, 1, 40},
                 .options = {.state_layout = layout, .chunk_size = 32},
                 .state = KdaState::separate,
                 .chunk_states = true});
  }
  t.push_back({.name = "decode",
               .lengths = {1, 1, 1, 1, 1, 1},
               .value_heads = 4,
               .options = {.state_layout = v_first},
               .state = KdaState::in_place,
               .slots = KdaSlots::shared,
               .null_slots = true});
  t.push_back({.name = "null_slot_7000",
               .lengths = {3, 2, 4},
               .options = {.state_layout = v_first, .null_slot = 7000},
               .state = KdaState::in_place,
               .slots = KdaSlots::shared,
               .null_slots = true});
}

}  // namespace

std::vector<KdaCase> kda_table() {
  Table table;
  add_lengths(table);
  add_numbers(table);
  add_kinds(table);
  add_shapes(table);
  add_dtypes(table);
  add_states(table);
  return table;
}

}  // namespace packattn::test
