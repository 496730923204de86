// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "packattn/implementation.h"

#include "core/attention_problem.h"
#include "core/kda_problem.h"

namespace packattn {

/// A schedule for one problem on one batch. Immutable, shared by calls on any thread.
struct Plan {
  virtual ~Plan() = default;
  std::size_t workspace_bytes = 0;
};

/// How one run is carried out.
struct RunContext {
  int threads = 1;
  std::span<std::byte> workspace = {};  ///< at least the plan's workspace_bytes, 64-byte aligned
  void* stream = nullptr;
  const std::function<void(std::int64_t, std::int64_t)>* progress = nullptr;  ///< null for none
};

/// One row of an operation's list.
template <class Call>
struct Implementation {
  std::string_view name;  ///< "cpu/attention.avx512"
  /// Why it cannot take the call (PA3xxx or PA4xxx); no value if it can.
  std::optional<Fault> (*decline)(const Call& call);
  std::shared_ptr<const Plan> (*plan)(const Call& call, int threads);
  void (*run)(const Call& call, const Plan& plan, const RunContext& context);
  bool on_host = true;  ///< runs on host memory; false: on a CUDA device
  /// `decline` without its wording, which takes 0.4 us, for a row that stands before usual ones.
  bool (*takes)(const Call& call) = nullptr;
};
using AttentionImplementation = Implementation<AttentionCall>;
using KdaImplementation = Implementation<KdaCall>;

}  // namespace packattn
