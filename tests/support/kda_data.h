// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "packattn/kda.h"

#include "support/kda_case.h"
#include "support/oracle.h"

namespace packattn::test {

struct KdaSequence {
  std::int64_t t = 0;
  std::vector<float> q = {}, k = {};  ///< [t, H, K]
  std::vector<float> v = {};          ///< [t, HV, V]
  std::vector<float> g = {};          ///< [t, HV, K] or [t, HV]
  std::vector<float> beta = {};       ///< [t, HV] or [t, HV, V]
  std::vector<float> initial = {};    ///< [HV, K, V]; empty starts from zeros
};

/// The content of a call, apart from where it lies.
struct KdaData {
  KdaCase shape;
  std::vector<KdaSequence> sequences;
  std::vector<float> A_log, dt_bias;

  explicit KdaData(const KdaCase& c);

  /// These sequences, in this order, contiguous and with cu_seqlens, states in separate tensors.
  KdaData only(const std::vector<std::size_t>& order) const;
  /// Tokens [begin, end) of sequence n, from `initial`.
  KdaSequence cut(std::size_t n, std::int64_t begin, std::int64_t end,
                  std::vector<float> initial) const;
  KdaOracle expected(std::size_t n, bool every_state = false) const;

  std::int64_t state_size() const { return shape.value_heads * shape.key_dim * shape.value_dim; }
};

/// One sequence's results; states as [HV, K, V] whatever their layout in memory.
struct KdaResult {
  std::vector<float> out;                        ///< [t, HV, V]
  std::vector<float> final;                      ///< empty if none is written
  std::vector<std::vector<float>> columns;       ///< after each token, with slot columns
  std::vector<std::vector<float>> chunk_states;  ///< before each chunk
};

/// The data in guarded memory, ready to be run many times by either form.
class KdaPlacement {
 public:
  explicit KdaPlacement(const KdaData& data);

  const PackedBatch* batch() const { return batch_ ? &*batch_ : nullptr; }
  KdaArgs args() const;
  /// What a call on the device needs, whether or not the host knows the boundaries.
  std::size_t device_workspace_bytes(Op op, const Context& context);
  /// The tensors copied to the device, and their bytes brought back.
  KdaArgs send();
  void fetch();
  const KdaOptions& options() const { return shape_.options; }

  std::optional<Fault> declined(Op op, const std::string& implementation) const;
  /// Runs, and fails the test if memory was touched that is not the call's to touch.
  std::vector<KdaResult> run(Op op, const Context& context);
  std::vector<KdaResult> run(Op op, const std::string& implementation, int threads = 1) {
    return run(op, {.threads = threads, .implementation = implementation});
  }

 private:
  std::array<Guarded*, 16> tensors();  ///< in the order of KdaArgs
  KdaArgs args_for(const std::string& implementation) const;
  std::optional<PackedBatch> batch_on_device();
  std::vector<KdaResult> run_on_device(Op op, const Context& context);
  void poison_outputs();
  void place_boundaries(const KdaData& data);
  void place_tokens(const KdaData& data);
  void place_state(const KdaData& data);
  void put_state(Guarded& pool, std::int64_t row, const std::vector<float>& state) const;
  std::vector<float> take_state(const Guarded& pool, std::int64_t row) const;
  const Guarded& written_pool() const { return state_.present() ? state_ : final_; }
  void check_memory() const;
  void check_rows() const;
  std::vector<KdaResult> collect() const;
  std::int64_t chunks(std::int64_t length) const;

  KdaCase shape_;
  std::vector<std::int64_t> lengths_, starts_;
  std::int64_t tokens_ = 0;  // rows of the packed tensors, or B * T
  std::int64_t read_row(std::size_t n) const { return read_rows_[n]; }
  std::vector<std::int64_t> read_rows_, write_rows_;  // rows of the pool, -1 for none
  std::vector<std::vector<std::int64_t>> column_rows_;
  BatchSpec spec_;
  std::optional<PackedBatch> batch_;
  Guarded q_, k_, v_, g_, beta_, out_, A_log_, dt_bias_;
  Guarded state_, initial_, final_, chunk_states_;
  Guarded slots_, read_slots_, write_slots_, accepted_;
  std::vector<Guarded> boundaries_;
};

}  // namespace packattn::test
