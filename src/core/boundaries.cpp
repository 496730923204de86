// SPDX-License-Identifier: Apache-2.0
#include "core/boundaries.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace packattn::detail {
namespace {

std::string str(std::string_view s) { return std::string(s); }

/// Rank and dtype of boundaries; any device.
bool check_form(NamedView t, FaultList& faults) {
  bool fine = true;
  if (t.view.rank() != 1) {
    faults.add(Code::boundaries_rank, {.argument = str(t.name),
                                       .value = std::to_string(t.view.rank()),
                                       .limit = "one-dimensional",
                                       .note = "its shape is " + t.view.shape_string()});
    fine = false;
  }
  if (t.view.dtype() != DType::i32 && t.view.dtype() != DType::i64) {
    faults.add(Code::boundaries_dtype, {.argument = str(t.name),
                                        .value = to_string(t.view.dtype()),
                                        .limit = dtype_list({DType::i32, DType::i64})});
    fine = false;
  }
  if (t.view.rank() == 1 && t.view.size(0) < 0) {
    faults.add(Code::negative_size, {.argument = str(t.name),
                                     .position = "dimension 0",
                                     .value = std::to_string(t.view.size(0))});
    fine = false;
  }
  if (fine && t.view.numel() > 0 && t.view.data() == nullptr) {
    faults.add(Code::null_data, {.argument = str(t.name), .value = std::to_string(t.view.numel())});
    fine = false;
  }
  return fine;
}

std::int64_t element(const TensorView& t, std::int64_t index) {
  const std::int64_t offset = index * t.stride(0);
  return t.dtype() == DType::i32 ? t.as<const std::int32_t>()[offset]
                                 : t.as<const std::int64_t>()[offset];
}

std::vector<std::int64_t> elements(const TensorView& t) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(t.size(0)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = element(t, static_cast<std::int64_t>(i));
  }
  return values;
}

void check_running_ends(NamedView t, const std::vector<std::int64_t>& values, FaultList& faults) {
  if (values.front() != 0) {
    faults.add(Code::boundaries_start, {.argument = str(t.name),
                                        .position = "index 0",
                                        .value = std::to_string(values.front()),
                                        .limit = "0"});
  }
  const auto descent = [&](auto from) {
    return std::adjacent_find(from, values.end(), std::greater());
  };
  const auto at = descent(values.begin());
  if (at == values.end()) return;
  int more = 0;
  for (auto next = descent(at + 1); next != values.end(); next = descent(next + 1)) ++more;
  faults.add(Code::boundaries_decrease,
             {.argument = str(t.name),
              .position = fmt::format("index {}", at - values.begin() + 1),
              .value = fmt::format("{} then {}", *at, at[1]),
              .limit = fmt::format("at least {}", *at),
              .note = fmt::format(
                  "{} sequences, {} rows at the end{}", values.size() - 1, values.back(),
                  more > 0 ? fmt::format("; it decreases {} more times", more) : std::string())});
}

void check_host_copy(NamedView cu, NamedView host, FaultList& faults) {
  if (host.view.size(0) != cu.view.size(0)) {
    faults.add(Code::host_copy_length, {.argument = str(host.name),
                                        .position = str(cu.name),
                                        .value = std::to_string(host.view.size(0)),
                                        .limit = std::to_string(cu.view.size(0))});
    return;
  }
  if (!cu.view.device().is_host() || !host.view.device().is_host()) return;
  for (std::int64_t i = 0; i < cu.view.size(0); ++i) {
    if (element(cu.view, i) != element(host.view, i)) {
      faults.add(Code::host_copy_values, {.argument = str(host.name),
                                          .position = fmt::format("index {}", i),
                                          .value = std::to_string(element(host.view, i)),
                                          .limit = std::to_string(element(cu.view, i))});
      return;
    }
  }
}

}  // namespace

std::optional<std::vector<std::int64_t>> read_integers(NamedView t, FaultList& faults) {
  if (!check_form(t, faults)) return {};
  if (!t.view.device().is_host()) {
    faults.add(Code::boundaries_on_device, {.argument = str(t.name),
                                            .position = "this form of the batch",
                                            .value = to_string(t.view.device())});
    return {};
  }
  return elements(t.view);
}

std::optional<std::vector<std::int64_t>> read_cu_seqlens(NamedView cu, NamedView host,
                                                         BatchSide& side, BatchState& state,
                                                         FaultList& faults) {
  const bool cu_fine = check_form(cu, faults);
  const bool host_fine = host.view.present() && check_form(host, faults);
  if (!cu_fine) return {};
  if (cu.view.numel() == 0) {
    faults.add(Code::boundaries_empty, {.argument = str(cu.name)});
    return {};
  }
  side.count = cu.view.size(0) - 1;
  if (host_fine) check_host_copy(cu, host, faults);

  const NamedView& source = cu.view.device().is_host() ? cu : host;
  if (!source.view.present() || !source.view.device().is_host()) {
    state.host_known = false;
    return {};
  }
  if ((&source == &host && !host_fine) || source.view.size(0) != cu.view.size(0)) return {};
  auto values = elements(source.view);
  check_running_ends(source, values, faults);
  return values;
}

std::optional<std::vector<std::int64_t>> read_lengths(NamedView t, FaultList& faults) {
  auto values = read_integers(t, faults);
  if (!values) return {};
  for (std::size_t n = 0; n < values->size(); ++n) {
    if ((*values)[n] < 0) {
      faults.add(Code::length_negative, {.argument = str(t.name),
                                         .position = fmt::format("index {}", n),
                                         .value = std::to_string((*values)[n]),
                                         .limit = "at least 0"});
    }
  }
  return values;
}

void check_gaps(std::string_view cu_name, NamedView lengths, const BatchSide& side,
                FaultList& faults) {
  const auto values = read_lengths(lengths, faults);
  if (!values) return;
  if (values->size() != side.lengths.size()) {
    faults.add(Code::batch_size_mismatch, {.argument = str(cu_name),
                                           .position = str(lengths.name),
                                           .value = std::to_string(side.lengths.size()),
                                           .limit = std::to_string(values->size())});
    return;
  }
  for (std::size_t n = 0; n < values->size(); ++n) {
    if ((*values)[n] != side.lengths[n]) {
      faults.add(Code::boundaries_gap,
                 {.argument = str(cu_name),
                  .position = fmt::format("sequence {}", n),
                  .value = fmt::format("it spans {} rows, but {} says {}", side.lengths[n],
                                       lengths.name, (*values)[n])});
      return;
    }
  }
}

void check_overlap(std::string_view name, const BatchSide& side, FaultList& faults) {
  std::vector<std::size_t> order;
  for (std::size_t n = 0; n < side.lengths.size(); ++n) {
    if (side.lengths[n] > 0) order.push_back(n);
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return side.starts[a] < side.starts[b]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::size_t a = order[i - 1];
    const std::size_t b = order[i];
    if (side.starts[a] + side.lengths[a] > side.starts[b]) {
      faults.add(
          Code::ranges_overlap,
          {.argument = str(name),
           .position = fmt::format("sequence {}", b),
           .value = fmt::format("row {} belongs to sequence {} already", side.starts[b], a)});
      return;
    }
  }
}

void read_padding_mask(NamedView mask, BatchSide& side, FaultList& faults) {
  side.argument = mask.name.data();
  TensorChecks checks(faults);
  if (!checks.given(mask, 2, "[B, S]") ||
      !checks.dtype(mask, {DType::boolean, DType::u8, DType::i8, DType::i32, DType::i64}) ||
      !checks.readable(mask)) {
    return;
  }
  if (!mask.view.device().is_host()) {
    faults.add(Code::boundaries_on_device, {.argument = str(mask.name),
                                            .position = "the padding mask form",
                                            .value = to_string(mask.view.device())});
    return;
  }
  const std::int64_t batch = mask.view.size(0);
  const std::int64_t width = mask.view.size(1);
  const auto bytes = static_cast<std::int64_t>(size_of(mask.view.dtype()));
  side.padded_shape[0] = batch;
  side.padded_shape[1] = width;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto before = static_cast<std::int64_t>(side.padded_rows.size());
    for (std::int64_t s = 0; s < width; ++s) {
      const auto* at = mask.view.as<const std::byte>() +
                       (b * mask.view.stride(0) + s * mask.view.stride(1)) * bytes;
      if (std::any_of(at, at + bytes, [](std::byte x) { return x != std::byte{0}; })) {
        side.padded_rows.push_back(b * width + s);
      }
    }
    side.starts.push_back(before);
    side.lengths.push_back(static_cast<std::int64_t>(side.padded_rows.size()) - before);
  }
  side.count = batch;
  side.rows = static_cast<std::int64_t>(side.padded_rows.size());
}

void read_position_ids(NamedView ids, BatchSide& side, FaultList& faults) {
  side.argument = ids.name.data();
  TensorView flat = ids.view;
  if (flat.rank() == 2 && flat.size(0) == 1) {  // [1, T], as model inputs have it
    const std::int64_t size = flat.size(1);
    const std::int64_t stride = flat.stride(1);
    flat = TensorView(flat.data(), flat.dtype(), flat.device(), {&size, 1}, {&stride, 1});
  }
  const auto values = read_integers({flat, ids.name}, faults);
  if (!values) return;
  for (std::size_t i = 0; i < values->size(); ++i) {
    const std::int64_t id = (*values)[i];
    if (id == 0) {
      side.starts.push_back(static_cast<std::int64_t>(i));
      side.lengths.push_back(0);
    } else if (i == 0 || id < 0 || id - 1 != (*values)[i - 1]) {
      faults.add(Code::position_ids_jump,
                 {.argument = str(ids.name),
                  .position = fmt::format("index {}", i),
                  .value = i == 0 ? fmt::format("it starts at {}", id)
                                  : fmt::format("{} then {}", (*values)[i - 1], id),
                  .limit = "0, or one more than before"});
      return;
    }
    ++side.lengths.back();
  }
  side.count = static_cast<std::int64_t>(side.lengths.size());
  side.rows = static_cast<std::int64_t>(values->size());
}

void read_pages(NamedView seqlens_k, NamedView table, BatchState& state, FaultList& faults) {
  BatchSide& side = state.k;
  side.argument = seqlens_k.name.data();
  side.exact = false;
  const bool lengths_on_device = seqlens_k.view.present() && !seqlens_k.view.device().is_host();
  if (!seqlens_k.view.present()) {
    faults.add(Code::boundaries_missing, {.argument = str(seqlens_k.name)});
  } else if (lengths_on_device) {
    if (check_form(seqlens_k, faults)) side.count = seqlens_k.view.size(0);
  } else if (auto lengths = read_lengths(seqlens_k, faults)) {
    side.starts.assign(lengths->size(), 0);
    side.lengths = std::move(*lengths);
    side.count = static_cast<std::int64_t>(side.lengths.size());
  }
  TensorChecks checks(faults);
  if (!checks.given(table, 2, "[N, max_pages]") || !checks.dtype(table, {DType::i32}) ||
      !checks.readable(table)) {
    return;
  }
  if (side.count >= 0 && table.view.size(0) != side.count) {
    faults.add(Code::batch_size_mismatch, {.argument = str(table.name),
                                           .position = str(seqlens_k.name),
                                           .value = std::to_string(table.view.size(0)),
                                           .limit = std::to_string(side.count)});
    return;
  }
  state.pages_per_sequence = table.view.size(1);
  const Device where = table.view.device();
  if (!where.is_host() || lengths_on_device) {
    state.host_known = false;
    return;
  }
  for (std::int64_t n = 0; n < table.view.size(0); ++n) {
    const auto* row = table.view.as<const std::int32_t>() + n * table.view.stride(0);
    state.block_table.insert(state.block_table.end(), row, row + state.pages_per_sequence);
  }
}

}  // namespace packattn::detail
