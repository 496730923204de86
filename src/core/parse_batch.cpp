// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "core/batch_state.h"
#include "core/boundaries.h"

namespace packattn::detail {
namespace {

/// The names under which one side's arguments appear in BatchSpec.
struct SideSpec { NamedView cu_seqlens, host, lengths, starts, mask; };

/// Refuses two descriptions of one side; says whether there is any at all.
bool one_source(const std::vector<NamedView>& sources, FaultList& faults) {
  const NamedView* first = nullptr;
  for (const NamedView& source : sources) {
    if (!source.view.present()) continue;
    if (first != nullptr) {
      faults.add(Code::sources_conflict,
                 {.argument = std::string(source.name), .value = std::string(first->name)});
    } else {
      first = &source;
    }
  }
  return first != nullptr;
}

/// Lengths are a source of their own, unless cu_seqlens or starts stand beside them.
NamedView own_lengths(const SideSpec& side) {
  static const TensorView absent;
  const bool part = side.cu_seqlens.view.present() || side.starts.view.present();
  return {part ? absent : side.lengths.view, side.lengths.name};
}

void check_host_has_original(const SideSpec& side, FaultList& faults) {
  if (!side.host.view.present() || side.cu_seqlens.view.present()) return;
  faults.add(Code::boundaries_missing,
             {.argument = std::string(side.cu_seqlens.name),
              .note = fmt::format("its host copy, {}, was given", side.host.name)});
}

void from_cu_seqlens(const SideSpec& spec, BatchSide& side, BatchState& state, FaultList& faults) {
  side.argument = spec.cu_seqlens.name.data();
  const auto values = read_cu_seqlens(spec.cu_seqlens, spec.host, side, state, faults);
  if (!values) {
    // Nothing on a device reads lengths beside cu_seqlens: gaps would be taken for rows.
    if (spec.lengths.view.present() && !state.host_known) {
      faults.add(Code::boundaries_on_device, {.argument = std::string(spec.cu_seqlens.name),
                                              .position = "the form with lengths beside it",
                                              .value = to_string(spec.cu_seqlens.view.device())});
    }
    return;
  }
  for (std::size_t n = 0; n + 1 < values->size(); ++n) {
    side.starts.push_back((*values)[n]);
    // A difference beyond 64 bits is a decrease or a start that was reported: any length will do.
    std::int64_t length = 0;
    if (__builtin_sub_overflow((*values)[n + 1], (*values)[n], &length)) length = 0;
    side.lengths.push_back(length);
  }
  side.rows = values->back();
  if (spec.lengths.view.present()) check_gaps(spec.cu_seqlens.name, spec.lengths, side, faults);
}

void from_lengths(const SideSpec& spec, BatchSide& side, FaultList& faults) {
  side.argument = spec.lengths.name.data();
  auto lengths = read_lengths(spec.lengths, faults);
  if (!lengths) return;
  std::int64_t total = 0;
  for (std::size_t n = 0; n < lengths->size(); ++n) {
    side.starts.push_back(total);
    if (__builtin_add_overflow(total, std::max<std::int64_t>(0, (*lengths)[n]), &total)) {
      faults.add(Code::lengths_overflow, {.argument = std::string(spec.lengths.name),
                                          .position = fmt::format("sequence {}", n),
                                          .limit = "2^63 - 1"});
      total = 0;
    }
  }
  side.lengths = std::move(*lengths);
  side.count = static_cast<std::int64_t>(side.lengths.size());
  side.rows = total;
}

void from_starts(const SideSpec& spec, bool written, BatchSide& side, FaultList& faults) {
  side.argument = spec.starts.name.data();
  side.exact = false;
  if (!spec.lengths.view.present()) {
    faults.add(Code::boundaries_missing, {.argument = std::string(spec.lengths.name)});
    return;
  }
  auto starts = read_lengths(spec.starts, faults);
  auto lengths = read_lengths(spec.lengths, faults);
  if (!starts || !lengths) return;
  if (starts->size() != lengths->size()) {
    faults.add(Code::batch_size_mismatch, {.argument = std::string(spec.starts.name),
                                           .position = std::string(spec.lengths.name),
                                           .value = std::to_string(starts->size()),
                                           .limit = std::to_string(lengths->size())});
    return;
  }
  for (std::size_t n = 0; n < starts->size(); ++n) {
    std::int64_t end = 0;
    if (__builtin_add_overflow((*starts)[n], (*lengths)[n], &end)) {
      faults.add(Code::lengths_overflow, {.argument = std::string(spec.starts.name),
                                          .position = fmt::format("sequence {}", n),
                                          .limit = "2^63 - 1"});
      return;
    }
    if ((*lengths)[n] > 0) side.rows = std::max(side.rows, end);
  }
  side.starts = std::move(*starts);
  side.lengths = std::move(*lengths);
  side.count = static_cast<std::int64_t>(side.lengths.size());
  if (written) check_overlap(spec.starts.name, side, faults);
}

void parse_side(const SideSpec& spec, bool written, BatchSide& side, BatchState& state,
                FaultList& faults) {
  if (spec.starts.view.present()) {
    from_starts(spec, written, side, faults);
  } else if (spec.cu_seqlens.view.present()) {
    from_cu_seqlens(spec, side, state, faults);
  } else if (spec.lengths.view.present()) {
    from_lengths(spec, side, faults);
  } else if (spec.mask.view.present()) {
    read_padding_mask(spec.mask, side, faults);
  }
}

void check_max_seqlen(std::string_view name, std::optional<std::int64_t> given,
                      const std::vector<std::int64_t>& lengths, std::int64_t& longest,
                      FaultList& faults) {
  const auto at = std::max_element(lengths.begin(), lengths.end());
  longest = lengths.empty() ? 0 : *at;
  if (!given || *given >= longest) return;
  faults.add(Code::max_seqlen_small, {.argument = std::string(name),
                                      .position = fmt::format("sequence {}", at - lengths.begin()),
                                      .value = std::to_string(*given),
                                      .limit = std::to_string(longest)});
}

void parse_query_side(const BatchSpec& spec, BatchState& state, FaultList& faults) {
  const NamedView position_ids{spec.position_ids, "position_ids"};
  const SideSpec side{.cu_seqlens = {spec.cu_seqlens_q, "cu_seqlens_q"},
                      .host = {spec.host_q, "host_q"},
                      .lengths = {spec.lengths_q, "lengths_q"},
                      .starts = {spec.starts_q, "starts_q"},
                      .mask = {spec.padding_mask_q, "padding_mask_q"}};
  const bool any = one_source(
      {own_lengths(side), side.cu_seqlens, side.starts, side.mask, position_ids}, faults);
  if (any) check_host_has_original(side, faults);
  if (!any) {
    faults.add(Code::boundaries_missing, {.argument = "cu_seqlens_q"});
  } else if (position_ids.view.present()) {
    read_position_ids(position_ids, state.q, faults);
  } else {
    parse_side(side, /*written=*/true, state.q, state, faults);
  }
}

void parse_key_side(const BatchSpec& spec, BatchState& state, FaultList& faults) {
  const SideSpec side{.cu_seqlens = {spec.cu_seqlens_k, "cu_seqlens_k"},
                      .host = {spec.host_k, "host_k"},
                      .lengths = {spec.lengths_k, "lengths_k"},
                      .starts = {spec.starts_k, "starts_k"},
                      .mask = {spec.padding_mask_k, "padding_mask_k"}};
  const NamedView seqlens_k{spec.seqlens_k, "seqlens_k"};
  const NamedView table{spec.block_table, "block_table"};
  const bool any =
      one_source({own_lengths(side), side.cu_seqlens, side.starts, side.mask, seqlens_k}, faults);
  check_host_has_original(side, faults);
  state.paged = seqlens_k.view.present() || table.view.present();
  state.shared = !any && !state.paged;
  if (state.paged) {
    read_pages(seqlens_k, table, state, faults);
  } else if (!state.shared) {
    parse_side(side, /*written=*/false, state.k, state, faults);
  }
}

/// The planner reads boundaries that only a device has, and all the others there too.
void check_one_place(const BatchSpec& spec, BatchState& state, FaultList& faults) {
  const NamedView given[] = {{spec.cu_seqlens_q, "cu_seqlens_q"},
                             {spec.lengths_q, "lengths_q"},
                             {spec.starts_q, "starts_q"},
                             {spec.padding_mask_q, "padding_mask_q"},
                             {spec.position_ids, "position_ids"},
                             {spec.cu_seqlens_k, "cu_seqlens_k"},
                             {spec.lengths_k, "lengths_k"},
                             {spec.starts_k, "starts_k"},
                             {spec.padding_mask_k, "padding_mask_k"},
                             {spec.seqlens_k, "seqlens_k"},
                             {spec.block_table, "block_table"}};
  const auto there = std::find_if(std::begin(given), std::end(given), [](const NamedView& t) {
    return t.view.present() && !t.view.device().is_host();
  });
  if (there == std::end(given)) return;
  state.device = there->view.device();
  if (state.host_known) return;
  for (const NamedView& t : given) {
    if (t.view.present()) TensorChecks(faults).same_device(t, *there);
  }
}

}  // namespace

void parse_batch(const BatchSpec& spec, BatchState& state, FaultList& faults) {
  state.capacity = spec.capacity;
  state.on_device = spec;
  parse_query_side(spec, state, faults);
  parse_key_side(spec, state, faults);
  check_one_place(spec, state, faults);

  const BatchSide& k = state.side(Side::key);
  state.size = std::max<std::int64_t>(0, state.q.count);
  if (state.q.count >= 0 && k.count >= 0 && state.q.count != k.count) {
    faults.add(Code::batch_size_mismatch, {.argument = state.q.argument,
                                           .position = k.argument,
                                           .value = std::to_string(state.q.count),
                                           .limit = std::to_string(k.count)});
    return;
  }
  if (!state.host_known) return;
  check_max_seqlen("max_seqlen_q", spec.max_seqlen_q, state.q.lengths, state.max_q, faults);
  check_max_seqlen("max_seqlen_k", spec.max_seqlen_k, k.lengths, state.max_k, faults);
  state.sequences.resize(state.q.lengths.size());
  for (std::size_t n = 0; n < state.sequences.size() && n < k.lengths.size(); ++n) {
    state.sequences[n] = {state.q.starts[n], state.q.lengths[n], k.starts[n], k.lengths[n]};
  }
}

}  // namespace packattn::detail
