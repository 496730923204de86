// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "packattn/packattn.h"

#include "support/attention_data.h"

namespace packattn::test {

/// What every implementation of attention keeps on every input. Each promise is held against one
/// call and fails the running test if it is broken.
class AttentionPromises {
 public:
  AttentionPromises(AttentionData data, std::string implementation);

  /// False if the implementation declines the call; forcing it is then refused with the reason.
  bool taken();
  /// Who declined by which code, once taken() has said so.
  const std::string& reason() const { return reason_; }

  /// Every promise below that is made for the case, but for workspace_and_progress.
  void all();
  void equal_the_oracle();
  void repeat_on_any_threads();
  void packed_is_alone();
  void any_order();
  void nan_stays();
  void later_tokens_change_nothing();
  void chunked_prefill_is_one_shot();
  void split_and_merged_is_one_shot();
  void workspace_and_progress();

  // Which calls a promise is made for.
  static bool is_causal(const AttentionCase& c);     ///< a row sees no later key
  static bool can_continue(const AttentionCase& c);  ///< rows keep their keys if cut behind them
  static bool can_split(const AttentionCase& c);     ///< both parts of the keys are calls

 private:
  const AttentionCase& shape() const { return data_.shape; }
  std::vector<std::int64_t> out_shape(std::int64_t rows) const {
    return {rows, shape().heads_q, shape().dv()};
  }
  std::vector<std::int64_t> lse_shape(std::int64_t rows) const { return {shape().heads_q, rows}; }
  std::vector<AttentionResult> run() { return placement_->run(implementation_); }
  std::vector<AttentionResult> run(const AttentionData& data) {
    return AttentionPlacement(data).run(implementation_);
  }
  bool same_kernel(std::int64_t rows, std::int64_t other_rows) const;
  void expect_same(const AttentionResult& actual, const AttentionResult& expected,
                   const std::string& what);

  AttentionData data_;
  std::string implementation_;
  std::string reason_;
  std::unique_ptr<AttentionPlacement> placement_;
};

}  // namespace packattn::test
