// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/implementation_table.h"
#include "core/injection.h"
#include "errors/fault_list.h"

namespace packattn {

template <class Call>
using ImplementationList = std::span<const Implementation<Call>>;

template <class Call>
std::string names_of(ImplementationList<Call> list) {
  std::string names;
  for (const auto& row : list) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

/// Why a row cannot take a call: its tensors are elsewhere, or what the row itself says.
template <class Call>
std::optional<Fault> decline(const Implementation<Call>& row, const Call& call) {
  if (call.problem.device.is_host() != row.on_host) {
    return make_fault(Code::device_unsupported, {.argument = std::string(row.name),
                                                 .value = to_string(call.problem.device),
                                                 .limit = row.on_host ? "cpu" : "cuda"});
  }
  if (auto fault = injected_decline(row.name)) return fault;
  return row.decline(call);
}

template <class Call>
std::vector<Verdict> verdicts(ImplementationList<Call> list, const Call& call) {
  std::vector<Verdict> result;
  for (const auto& row : list) result.push_back({std::string(row.name), decline(row, call)});
  return result;
}

/// A forced name has to be on the list.
template <class Call>
void check_implementation_name(std::string_view op, ImplementationList<Call> list,
                               const std::string& forced, FaultList& faults) {
  const auto same = [&](const auto& row) { return row.name == forced; };
  if (forced.empty() || std::any_of(list.begin(), list.end(), same)) return;
  faults.add(Code::implementation_unknown,
             {.argument = std::string(op), .value = '"' + forced + '"', .limit = names_of(list)});
}

/// The row with the forced name, or the first that takes the call. A forced row that declines is
/// an error: nothing falls back without being asked to.
template <class Call>
const Implementation<Call>& select(ImplementationList<Call> list, const Call& call,
                                   const std::string& forced) {
  if (auto fault = injected_device_fault(call.problem.device)) throw Error({*std::move(fault)});
  const bool on_host = call.problem.device.is_host();
  const auto same_side = [&](const auto& row) { return row.on_host == on_host; };
  if (!on_host && std::none_of(list.begin(), list.end(), same_side)) {
    fail(Code::cuda_absent, {.argument = "q", .value = to_string(call.problem.device)});
  }
  // The usual case first, without wording reasons that nobody will read.
  for (const auto& row : list) {
    if (!(forced.empty() || row.name == forced) || !same_side(row)) continue;
    if ((row.takes == nullptr || row.takes(call)) && !decline(row, call)) return row;
  }
  // A row for tensors elsewhere was never a choice, unless it was asked for by name.
  std::vector<Fault> reasons;
  for (const auto& row : list) {
    if (forced.empty() ? !same_side(row) : row.name != forced) continue;
    auto declined = decline(row, call);
    if (!declined) continue;
    if (!forced.empty()) {
      reasons.push_back(make_fault(Code::implementation_declined,
                                   {.argument = forced, .value = declined->message}));
    }
    reasons.push_back(std::move(*declined));
  }
  throw Error(std::move(reasons));
}

/// Threads to use for `Context::threads`: as many as it says, or else as many as there are
/// processors, within `limit_threads`, and as `operations` multiply-adds keep busy for longer than
/// waking them takes.
int resolve_threads(int wanted, double operations);

}  // namespace packattn
