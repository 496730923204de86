// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "packattn/attention.h"

#include "support/guarded.h"

namespace packattn::test {

/// The form in which a case hands over its boundaries.
enum class Boundaries {
  cu_int32,
  cu_int64,
  cu_mixed,     ///< int32 queries, int64 keys
  cu_strided,   ///< every second entry of a wider array
  host_copies,  ///< cu_seqlens with equal host copies
  lengths,
  starts,        ///< sequences in any place, with gaps between them
  capacity,      ///< rows after the end that belong to nobody
  padding_mask,  ///< left-padded on even rows, right-padded on odd ones
  position_ids,  ///< shared boundaries without empty sequences
  paged,         ///< keys in shuffled pages
};

enum class Slopes { none, per_head, per_sequence };

/// One call of softmax attention as a value. Tests and benchmarks run the same ones.
struct AttentionCase {
  std::string name;
  std::vector<std::int64_t> lengths_q;
  std::vector<std::int64_t> lengths_k = {};  ///< empty: the queries' boundaries serve both
  std::int64_t heads_q = 2;
  std::int64_t heads_k = 2;
  std::int64_t head_dim = 64;
  std::int64_t value_dim = 0;  ///< 0: head_dim
  DType dtype = DType::f32;
  std::optional<DType> out_dtype = {};
  bool causal = false;
  Align align = Align::bottom_right;
  Window window = {};
  std::optional<double> scale = {};
  double softcap = 0;
  Slopes slopes = Slopes::none;
  bool sinks = false;
  bool lse = true;
  Boundaries boundaries = Boundaries::cu_int32;
  std::int64_t page_size = 16;
  Form form = Form::contiguous;
  double magnitude = 1;  ///< of q; large ones make the softmax a choice of one key

  std::int64_t dv() const { return value_dim == 0 ? head_dim : value_dim; }
  DType out_type() const { return out_dtype.value_or(dtype); }
  std::int64_t q_length(std::size_t n) const { return lengths_q[n]; }
  std::int64_t k_length(std::size_t n) const {
    return (lengths_k.empty() ? lengths_q : lengths_k)[n];
  }
};

/// All cases, or the reduced table if PACKATTN_TEST_TABLE=reduced (for sanitizers): no long
/// sequences, every option and form still there.
std::vector<AttentionCase> attention_table();
bool reduced_table();

inline void PrintTo(const AttentionCase& c, std::ostream* os) { *os << c.name; }

}  // namespace packattn::test
