// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "packattn/attention.h"

#include "support/attention_case.h"
#include "support/oracle.h"

namespace packattn::test {

/// One sequence's numbers, already rounded to the case's type, apart from where they will lie.
struct AttentionSequence {
  std::int64_t lq = 0, lk = 0;
  std::vector<float> q = {}, k = {}, v = {};
  std::vector<float> slopes = {};  ///< of this sequence, if the case has slopes per sequence
};

/// The content of a call. Tests reorder, cut and edit the sequences and place the result again.
struct AttentionData {
  AttentionCase shape;
  std::vector<AttentionSequence> sequences;
  std::vector<float> slopes, sinks;

  explicit AttentionData(const AttentionCase& c);

  /// These sequences, in this order, contiguous and with cu_seqlens.
  AttentionData only(const std::vector<std::size_t>& order) const;
  /// Rows [q_begin, q_end) of sequence n over its keys [k_begin, k_end).
  AttentionSequence cut(std::size_t n, std::int64_t q_begin, std::int64_t q_end,
                        std::int64_t k_begin, std::int64_t k_end) const;
  AttentionOracle expected(std::size_t n) const;
};

/// One sequence's part of the outputs.
struct AttentionResult {
  std::vector<float> out;  ///< [lq, hq, dv]
  std::vector<float> lse;  ///< [hq, lq]; empty if the case has none
};

/// The data laid out in guarded memory as the case says, ready to be run many times.
class AttentionPlacement {
 public:
  explicit AttentionPlacement(const AttentionData& data);

  const PackedBatch& batch() const { return *batch_; }
  const BatchSpec& spec() const { return spec_; }
  AttentionArgs args() const;
  AttentionOptions options() const;

  /// Why an implementation does not take this call, its tensors being where it runs.
  std::optional<Fault> declined(const std::string& implementation) const;
  /// Runs, and fails the test if a byte was written that is not an output's, an output was left
  /// unwritten, an input changed, or a row without a sequence is not what it has to be.
  std::vector<AttentionResult> run(const Context& context);
  std::vector<AttentionResult> run(const std::string& implementation, int threads = 1) {
    return run({.threads = threads, .implementation = implementation});
  }

 private:
  void place_boundaries(const AttentionData& data);
  void place_pages(const AttentionData& data);
  std::vector<AttentionResult> run_on_device(const Context& context);
  /// The views, said to be on a device if the implementation runs there: for checks alone.
  AttentionArgs args_for(const std::string& implementation, AttentionOptions& options) const;
  void check_memory();
  std::vector<AttentionResult> collect() const;

  AttentionCase shape_;
  BatchSpec spec_;
  std::optional<PackedBatch> batch_;
  std::vector<std::int64_t> q_starts_, k_starts_;
  std::int64_t rows_q_ = 0, rows_k_ = 0;
  Guarded q_, k_, v_, out_, lse_, slopes_, sinks_;
  std::vector<Guarded> boundaries_;  // never reallocated: the views of spec_ point into them
};

/// "case" and, for a failure, what was being compared.
std::string describe(const AttentionCase& c, std::size_t sequence);

}  // namespace packattn::test
