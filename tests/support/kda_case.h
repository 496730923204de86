// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "packattn/kda.h"

#include "support/attention_case.h"

namespace packattn::test {

enum class KdaState {
  none,
  in_place,      ///< `state`
  initial_only,  ///< `initial_state`
  final_only,    ///< `final_state`, starting from zeros
  separate,      ///< both of them
};

/// How sequences find their rows of the state.
enum class KdaSlots {
  none,     ///< row n
  shared,   ///< `slots`
  split,    ///< `read_slots` and `write_slots`
  columns,  ///< `slots` [N, S] with num_accepted_tokens
};

enum class KdaNumbers {
  mild,              ///< gates between -0.2 and 0
  constant,          ///< every gate is `gate_value`
  interrupted,       ///< mild, with -1000 at some tokens
  wild,              ///< each gate from 0 to -1000, of any size
  collinear,         ///< identical keys, beta 1, gate 0
  nearly_collinear,  ///< nearly identical keys, beta 1, gates -0.03 .. -0.01
};

/// Form of the optional bias of the gate.
enum class Bias { none, matrix, flat };

/// One call of KDA as a value, for both its forms.
struct KdaCase {
  std::string name;
  std::vector<std::int64_t> lengths;
  std::int64_t heads = 2;
  std::int64_t value_heads = 2;
  std::int64_t key_dim = 64;  ///< differs from value_dim, so that a transposed state cannot hide
  std::int64_t value_dim = 128;
  DType dtype = DType::f32;
  std::optional<DType> out_dtype = {};
  DType gate_dtype = DType::f32;
  DType beta_dtype = DType::f32;
  DType state_dtype = DType::f32;
  bool gate_per_head = false;
  bool beta_per_channel = false;
  bool A_log = false;
  Bias bias = Bias::none;
  KdaOptions options = {};
  bool rows = false;  ///< the [B, T] form: no boundaries, equal lengths
  Boundaries boundaries = Boundaries::cu_int32;
  KdaState state = KdaState::none;
  KdaSlots slots = KdaSlots::none;
  bool null_slots = false;  ///< every third sequence, from the second on, is skipped
  bool chunk_states = false;
  Form form = Form::contiguous;
  KdaNumbers numbers = KdaNumbers::mild;
  double gate_value = 0;

  DType out_type() const { return out_dtype.value_or(dtype); }
  bool reads_state() const {
    return state == KdaState::in_place || state == KdaState::initial_only ||
           state == KdaState::separate;
  }
  bool writes_state() const { return state != KdaState::none && state != KdaState::initial_only; }
  bool skipped(std::size_t n) const { return null_slots && n % 3 == 1; }
};

/// All cases, or the reduced table. Cases with `chunk_states` are for the chunked form only.
std::vector<KdaCase> kda_table();

inline void PrintTo(const KdaCase& c, std::ostream* os) { *os << c.name; }

}  // namespace packattn::test
