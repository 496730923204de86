// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "packattn/packattn.h"

namespace packattn::cli {

/// One call of an operation, as a file or a description gives it. The views borrow from the input.
struct Call {
  Op op = Op::attention;
  AttentionArgs attention = {};
  AttentionOptions attention_options = {};
  KdaArgs kda = {};
  KdaOptions kda_options = {};
  BatchSpec spec = {};
  bool has_batch = false;  ///< boundaries were given; KDA also runs without
  Context context = {};

  // What the command line decides about outputs.
  bool lse = true;
  bool final_state = false;
  bool chunk_states = false;
  bool fp32_out = false;

  const TensorView& q() const { return op == Op::attention ? attention.q : kda.q; }
};

std::string to_string(Op op);

std::vector<Fault> check(const Call& call);
std::vector<Verdict> why(const Call& call, const PackedBatch* batch);
void run(const Call& call, const PackedBatch* batch);

/// The batch of a call that was checked; none for KDA without boundaries.
std::optional<PackedBatch> make_batch(const Call& call);

/// "attention: 27 sequences, 893 query and 893 key tokens, q [893, 12, 32] fp32"
std::string describe(const Call& call, const PackedBatch* batch);

/// Puts the call's output tensors in place, before they have memory: address space that nothing
/// reads, so that a call can be checked without allocating for it. Returns them by name.
std::map<std::string, TensorView*> place_outputs(Call& call);

}  // namespace packattn::cli
