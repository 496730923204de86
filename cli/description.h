// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "packattn/tensor.h"

namespace packattn::cli {

/// A call in JSON, for checking it without its data:
///   {"op": "attention",
///    "tensors": {"q": {"dtype": "bf16", "shape": [20, 4, 64], "device": "cuda:0"}, ...,
///                "cu_seqlens_q": [0, 12, 20],
///                "block_table": {"dtype": "int32", "shape": [2, 1], "values": [4, 0]}},
///    "options": {"causal": true, "window_left": 128}}
/// A list is an int64 tensor. Inputs, weights and states have no memory behind them.
struct Description {
  std::map<std::string, TensorView> tensors;
  std::map<std::string, std::string> options;
  std::deque<std::vector<std::int64_t>> memory;  ///< of tensors with values
};

/// Raises PA7001 (cannot be read) or PA7005 (does not have the form above).
Description read_description(const std::filesystem::path& path);

}  // namespace packattn::cli
