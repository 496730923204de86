// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string_view>

#include "support/attention_case.h"

namespace packattn::test {
namespace {

using Lengths = std::vector<std::int64_t>;
using Table = std::vector<AttentionCase>;

const Lengths mixed{5, 0, 1, 33, 17};
const Lengths mixed_k{9, 4, 1, 70, 3};

std::string dtype_name(DType dtype) { return to_string(dtype); }

void add_lengths(Table& t) {
  t.push_back({.name = "plain", .lengths_q = {5, 1, 17}});
  t.push_back({.name = "one_token", .lengths_q = {1}});
  t.push_back({.name = "no_sequences", .lengths_q = {}});
  t.push_back({.name = "all_empty", .lengths_q = {0, 0}});
  t.push_back({.name = "empty_both_sides", .lengths_q = {3, 0, 4}});
  t.push_back({.name = "empty_queries", .lengths_q = {0, 3}, .lengths_k = {5, 2}});
  t.push_back({.name = "empty_keys", .lengths_q = {3, 2}, .lengths_k = {0, 4}});
  t.push_back({.name = "only_empty_keys", .lengths_q = {1}, .lengths_k = {0}});
  t.push_back({.name = "empty_last", .lengths_q = {1, 1}, .lengths_k = {1, 0}});
  t.push_back({.name = "only_keys", .lengths_q = {0}, .lengths_k = {1}});
  t.push_back({.name = "cross", .lengths_q = {7, 1, 64}, .lengths_k = {65, 130, 3}});
  t.push_back(
      {.name = "tile_edges", .lengths_q = {15, 16, 17, 31, 32, 33, 63, 64, 65}, .causal = true});
  t.push_back({.name = "tile_edges_full", .lengths_q = {127, 128, 129}, .heads_q = 4});
  t.push_back({.name = "decode",
               .lengths_q = {1, 1, 1, 1},
               .lengths_k = {1, 64, 65, 300},
               .heads_q = 8,
               .causal = true});
  t.push_back({.name = "wide_batch",
               .lengths_q = {200, 150, 47},
               .heads_q = 8,
               .heads_k = 8,
               .head_dim = 128,
               .boundaries = Boundaries::capacity});
}

void add_masks(Table& t) {
  for (const Align align : {Align::bottom_right, Align::top_left}) {
    const std::string side = align == Align::bottom_right ? "_bottom_right" : "_top_left";
    t.push_back({.name = "causal_2x5_3x1" + side,
                 .lengths_q = {2, 3},
                 .lengths_k = {5, 1},
                 .causal = true,
                 .align = align});
    t.push_back({.name = "causal" + side,
                 .lengths_q = mixed,
                 .lengths_k = mixed_k,
                 .causal = true,
                 .align = align});
    t.push_back({.name = "window" + side,
                 .lengths_q = mixed,
                 .lengths_k = mixed_k,
                 .align = align,
                 .window = {.left = 3, .right = 2}});
    t.push_back({.name = "window_right" + side,
                 .lengths_q = mixed,
                 .lengths_k = mixed_k,
                 .align = align,
                 .window = {.right = 4}});
    t.push_back({.name = "window_left_causal" + side,
                 .lengths_q = {40, 4},
                 .lengths_k = {90, 4},
                 .causal = true,
                 .align = align,
                 .window = {.left = 20}});
    t.push_back({.name = "alibi" + side,
                 .lengths_q = mixed,
                 .lengths_k = mixed_k,
                 .align = align,
                 .slopes = Slopes::per_head});
    t.push_back({.name = "everything" + side,
                 .lengths_q = mixed,
                 .lengths_k = mixed_k,
                 .heads_q = 6,
                 .heads_k = 3,
                 .causal = true,
                 .align = align,
                 .window = {.left = 11},
                 .scale = 0.2,
                 .softcap = 3,
                 .slopes = Slopes::per_sequence,
                 .sinks = true});
  }
  t.push_back(
      {.name = "window_two_tokens", .lengths_q = {4}, .causal = true, .window = {.left = 1}});
  t.push_back({.name = "window_diagonal", .lengths_q = {20}, .window = {.left = 0, .right = 0}});
  t.push_back({.name = "window_past_everything",
               .lengths_q = {9, 30},
               .lengths_k = {2, 2},
               .align = Align::top_left,
               .window = {.left = 3, .right = 3}});
  t.push_back({.name = "window_unbounded",
               .lengths_q = {9},
               .window = {.left = INT64_MAX, .right = INT64_MAX}});
}

void add_options(Table& t) {
  t.push_back({.name = "softcap", .lengths_q = mixed, .softcap = 5, .magnitude = 6});
  t.push_back({.name = "sinks", .lengths_q = mixed, .lengths_k = mixed_k, .sinks = true});
  t.push_back(
      {.name = "sinks_without_keys", .lengths_q = {3, 2}, .lengths_k = {0, 4}, .sinks = true});
  t.push_back({.name = "alibi_per_sequence",
               .lengths_q = {40, 0, 9},
               .causal = true,
               .slopes = Slopes::per_sequence});
  t.push_back({.name = "scale", .lengths_q = mixed, .scale = 0.3});
  t.push_back({.name = "scale_zero", .lengths_q = {6}, .scale = 0});
  t.push_back({.name = "scale_negative", .lengths_q = {6}, .scale = -0.25});
  t.push_back({.name = "sharp", .lengths_q = {70}, .lengths_k = {200}, .magnitude = 30});
  t.push_back({.name = "no_lse", .lengths_q = mixed, .lse = false});
  t.push_back({.name = "gqa", .lengths_q = mixed, .heads_q = 8, .heads_k = 2, .causal = true});
  t.push_back({.name = "mqa", .lengths_q = {20, 3}, .heads_q = 6, .heads_k = 1});
  t.push_back(
      {.name = "many_heads", .lengths_q = {4, 2}, .heads_q = 33, .heads_k = 11, .head_dim = 16});
}

void add_head_sizes(Table& t) {
  for (const std::int64_t d : {1, 5, 8, 24, 33, 40, 72, 80, 96, 120, 128, 160, 192, 256}) {
    t.push_back({.name = "head_size_" + std::to_string(d),
                 .lengths_q = {19, 3},
                 .lengths_k = {35, 66},
                 .head_dim = d,
                 .causal = true});
  }
  t.push_back({.name = "head_size_192_128",
               .lengths_q = {20},
               .lengths_k = {40},
               .head_dim = 192,
               .value_dim = 128});
  t.push_back({.name = "head_size_576_512",
               .lengths_q = {3},
               .lengths_k = {40},
               .heads_q = 4,
               .heads_k = 1,
               .head_dim = 576,
               .value_dim = 512,
               .scale = 0.072});
  t.push_back({.name = "head_size_64_24", .lengths_q = {18}, .head_dim = 64, .value_dim = 24});
  t.push_back({.name = "head_size_24_72", .lengths_q = {18}, .head_dim = 24, .value_dim = 72});
}

void add_dtypes(Table& t) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const std::string name = dtype_name(dtype);
    t.push_back({.name = name,
                 .lengths_q = {65, 0, 3, 130},
                 .heads_q = 4,
                 .head_dim = 128,
                 .dtype = dtype});
    t.push_back({.name = name + "_causal",
                 .lengths_q = mixed,
                 .lengths_k = mixed_k,
                 .heads_q = 4,
                 .dtype = dtype,
                 .causal = true});
    t.push_back({.name = name + "_everything",
                 .lengths_q = mixed,
                 .lengths_k = mixed_k,
                 .dtype = dtype,
                 .causal = true,
                 .window = {.left = 40},
                 .softcap = 10,
                 .slopes = Slopes::per_head,
                 .sinks = true});
    t.push_back({.name = name + "_to_f32",
                 .lengths_q = mixed,
                 .dtype = dtype,
                 .out_dtype = DType::f32,
                 .causal = true});
    t.push_back(
        {.name = name + "_head_size_72", .lengths_q = {18, 3}, .head_dim = 72, .dtype = dtype});
    t.push_back(
        {.name = name + "_head_size_33", .lengths_q = {18, 3}, .head_dim = 33, .dtype = dtype});
    t.push_back({.name = name + "_decode_paged",
                 .lengths_q = {1, 1, 1},
                 .lengths_k = {70, 1, 33},
                 .heads_q = 8,
                 .dtype = dtype,
                 .causal = true,
                 .boundaries = Boundaries::paged});
  }
}

void add_layouts(Table& t) {
  for (const Form form : {Form::wide, Form::heads_first, Form::odd_base, Form::odd_unit}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      t.push_back({.name = to_string(form) + "_" + dtype_name(dtype),
                   .lengths_q = {6, 0, 21},
                   .lengths_k = {30, 2, 21},
                   .heads_q = 4,
                   .dtype = dtype,
                   .causal = true,
                   .form = form});
    }
    t.push_back({.name = to_string(form) + "_one_head",
                 .lengths_q = {6, 21},
                 .heads_q = 1,
                 .heads_k = 1,
                 .form = form});
  }
}

void add_boundaries(Table& t) {
  const std::vector<std::pair<const char*, Boundaries>> forms = {
      {"cu_int64", Boundaries::cu_int64},     {"cu_mixed", Boundaries::cu_mixed},
      {"cu_strided", Boundaries::cu_strided}, {"host_copies", Boundaries::host_copies},
      {"lengths", Boundaries::lengths},       {"starts", Boundaries::starts},
      {"capacity", Boundaries::capacity},     {"padding_mask", Boundaries::padding_mask}};
  for (const auto& [name, boundaries] : forms) {
    t.push_back({.name = name, .lengths_q = mixed, .causal = true, .boundaries = boundaries});
    t.push_back({.name = std::string(name) + "_cross",
                 .lengths_q = mixed,
                 .lengths_k = mixed_k,
                 .heads_q = 4,
                 .boundaries = boundaries});
  }
  t.push_back({.name = "position_ids",
               .lengths_q = {5, 1, 18},
               .causal = true,
               .boundaries = Boundaries::position_ids});
  for (const std::int64_t page_size : {1, 3, 16, 64, 256}) {
    t.push_back({.name = "paged_" + std::to_string(page_size),
                 .lengths_q = mixed,
                 .lengths_k = mixed_k,
                 .heads_q = 4,
                 .causal = true,
                 .boundaries = Boundaries::paged,
                 .page_size = page_size});
  }
  t.push_back({.name = "paged_wide",
               .lengths_q = {1, 7},
               .lengths_k = {40, 90},
               .heads_q = 4,
               .causal = true,
               .window = {.left = 30},
               .boundaries = Boundaries::paged,
               .form = Form::wide});
  t.push_back({.name = "paged_heads_first",
               .lengths_q = {1, 7},
               .lengths_k = {40, 90},
               .boundaries = Boundaries::paged,
               .form = Form::heads_first});
}

// Long enough for several key tiles and key splits.
void add_long(Table& t) {
  t.push_back({.name = "long_causal", .lengths_q = {1000, 3, 257}, .causal = true});
  t.push_back({.name = "long_keys",
               .lengths_q = {2, 1},
               .lengths_k = {5000, 9000},
               .heads_q = 4,
               .heads_k = 1});
  t.push_back({.name = "long_window",
               .lengths_q = {700},
               .lengths_k = {900},
               .causal = true,
               .window = {.left = 100}});
  t.push_back({.name = "long_bf16",
               .lengths_q = {513, 1},
               .lengths_k = {1025, 4097},
               .head_dim = 128,
               .dtype = DType::bf16});
  t.push_back({.name = "long_f16",
               .lengths_q = {513, 1},
               .lengths_k = {1025, 4097},
               .head_dim = 128,
               .dtype = DType::f16,
               .causal = true});
  t.push_back({.name = "long_paged",
               .lengths_q = {1, 100},
               .lengths_k = {3000, 1500},
               .heads_q = 4,
               .causal = true,
               .boundaries = Boundaries::paged,
               .page_size = 48});
}

}  // namespace

bool reduced_table() {
  const char* table = std::getenv("PACKATTN_TEST_TABLE");
  return table != nullptr && std::string_view(table) == "reduced";
}

std::vector<AttentionCase> attention_table() {
  Table table;
  add_lengths(table);
  add_masks(table);
  add_options(table);
  add_head_sizes(table);
  add_dtypes(table);
  add_layouts(table);
  add_boundaries(table);
  if (!reduced_table()) add_long(table);
  return table;
}

}  // namespace packattn::test
