// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "support/layer_data.h"

namespace packattn::test {

/// What every implementation of a neighbour of KDA promises for one call.
class LayerPromises {
 public:
  LayerPromises(LayerData data, std::string implementation);

  bool taken();
  void all();
  void equal_the_oracle();
  void repeat_on_any_threads();
  void packed_is_alone_in_any_order();
  void nan_stays();
  void later_tokens_change_nothing();
  void continued_is_one_shot();

 private:
  std::vector<LayerResult> run() { return run(data_); }
  std::vector<LayerResult> run(const LayerData& data);
  void expect_same(const LayerResult& actual, const LayerResult& expected, const std::string& what);
  const LayerCase& shape() const { return data_.shape; }
  std::vector<std::int64_t> rows() const { return {-1, shape().row()}; }

  LayerData data_;
  std::string implementation_;
};

}  // namespace packattn::test
