// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "core/implementation_table.h"
#include "core/layer_calls.h"

namespace packattn {

/// The schedules made for one batch, so that the layers of a model share one. A batch sees few
/// distinct problems; a short list searched linearly is faster than a map.
class PlanCache {
 public:
  /// The plan for this problem, made by `make` if it is new. Safe from many threads.
  template <class Problem, class Make>
  std::shared_ptr<const Plan> get(std::string_view implementation, const Problem& problem,
                                  int threads, Make&& make) {
    auto& entries = entries_of(problem);
    const auto matches = [&](const auto& entry) {
      return entry.threads == threads && entry.implementation == implementation &&
             entry.problem == problem;
    };
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::find_if(entries.begin(), entries.end(), matches);
      if (found != entries.end()) return found->plan;
    }
    auto plan = make();  // outside the lock: two threads may plan the same, with equal results
    const std::lock_guard lock(mutex_);
    if (entries.size() == max_entries) entries.erase(entries.begin());
    entries.push_back({implementation, problem, threads, plan});
    return plan;
  }

 private:
  static constexpr std::size_t max_entries = 16;

  template <class Problem>
  struct Entry {
    std::string_view implementation;  // names in implementation tables live forever
    Problem problem;
    int threads;
    std::shared_ptr<const Plan> plan;
  };
  auto& entries_of(const AttentionProblem&) { return attention_; }
  auto& entries_of(const KdaProblem&) { return kda_; }
  auto& entries_of(const LayerProblem&) { return layers_; }

  std::mutex mutex_;
  std::vector<Entry<AttentionProblem>> attention_;
  std::vector<Entry<KdaProblem>> kda_;
  std::vector<Entry<LayerProblem>> layers_;
};

}  // namespace packattn
