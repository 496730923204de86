// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "packattn/packattn.h"

#include "support/compare.h"
#include "support/kda_data.h"

namespace packattn::test {

/// What every implementation of both forms of KDA keeps on every input. Each promise is held
/// against one call and fails the running test if it is broken.
class KdaPromises {
 public:
  KdaPromises(Op op, KdaData data, std::string implementation);

  /// False if the implementation declines the call; forcing it is then refused with the reason.
  bool taken();
  /// Who declined by which code, once taken() has said so.
  const std::string& reason() const { return reason_; }

  /// Every promise below that is made for the case, but for workspace_and_progress.
  void all();
  void equal_the_oracle();
  void no_tokens_keep_the_state();
  void repeat_on_any_threads();
  void packed_is_alone_in_any_order();
  void nan_stays();
  void later_tokens_change_nothing();
  void continued_is_one_shot();
  void workspace_and_progress();

  // Which calls a form or a promise is made for.
  static bool has_form(Op op, const KdaCase& c);
  static bool has_one_state(const KdaCase& c);
  static bool can_continue(const KdaCase& c);

 private:
  const KdaCase& shape() const { return data_.shape; }
  std::vector<std::int64_t> out_shape(std::size_t values) const {
    const std::int64_t width = shape().value_heads * shape().value_dim;
    return {static_cast<std::int64_t>(values) / width, shape().value_heads, shape().value_dim};
  }
  std::vector<std::int64_t> state_shape() const {
    return {shape().value_heads, shape().key_dim, shape().value_dim};
  }
  Limits out_limits() const { return kda_out_limits(shape().dtype, shape().out_type()); }
  Limits state_limits(DType stored) const { return kda_state_limits(shape().dtype, stored); }
  std::vector<KdaResult> run() { return placement_->run(op_, implementation_); }
  std::vector<KdaResult> run(const KdaData& data) {
    return KdaPlacement(data).run(op_, implementation_);
  }
  void device_workspace();
  void expect_same(const KdaResult& actual, const KdaResult& expected, const std::string& what);
  void expect_same_states(const std::vector<std::vector<float>>& actual,
                          const std::vector<std::vector<float>>& expected, const std::string& what);

  Op op_;
  KdaData data_;
  std::string implementation_;
  std::string reason_;
  std::unique_ptr<KdaPlacement> placement_;
};

}  // namespace packattn::test
