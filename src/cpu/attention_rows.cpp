// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace packattn::cpu {
namespace {

template <class Byte>
Byte* address(const TensorView& tensor, std::int64_t element) {
  return tensor.as<Byte>() + element * static_cast<std::int64_t>(size_of(tensor.dtype()));
}

}  // namespace

ScoreRule score_rule(const AttentionProblem& problem) {
  const double factor = problem.scale * std::numbers::log2e;
  ScoreRule rule{.alibi = problem.alibi,
                 .scale = static_cast<float>(problem.scale),
                 .softcap = static_cast<float>(problem.softcap),
                 .log2_factor = static_cast<float>(factor),
                 .lse_factor = problem.scale};
  // Below 1e-30 the lowest exponent, divided by the factor, would not be a number any more.
  rule.plain = problem.softcap == 0 && !problem.alibi && factor > 1e-30 &&
               factor < std::numeric_limits<float>::max();
  if (!rule.plain) {
    rule.log2_factor = std::numbers::log2e_v<float>;
    rule.lse_factor = 1;
  }
  return rule;
}

KeyRows key_rows(const AttentionCall& call, const TensorView& tensor, std::int64_t sequence,
                 std::int64_t head) {
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype()));
  const std::int64_t row_stride = tensor.stride(-3);
  const Sequence& s = call.batch.sequences()[static_cast<std::size_t>(sequence)];
  KeyRows rows{
      .first = address<const std::byte>(tensor, head * tensor.stride(-2) + s.k_start * row_stride),
      .row_stride = row_stride * bytes};
  if (call.problem.paged) {
    rows.pages = call.batch.block_table(sequence).data();
    rows.page_size = call.problem.page_size;
    rows.page_stride = tensor.stride(0) * bytes;
  }
  return rows;
}

void fill_rows(const AttentionCall& call, const Work& work, std::int64_t key_head,
               std::span<TileRow> rows) {
  const auto& [args, options, problem, batch] = call;
  const Sequence& s = batch.sequences()[static_cast<std::size_t>(work.sequence)];
  const TensorView& slopes = options.alibi_slopes;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t flat = work.row_begin + static_cast<std::int64_t>(r);
    const std::int64_t i = flat / problem.group();
    const std::int64_t token = s.q_start + i;
    const std::int64_t head = key_head * problem.group() + flat % problem.group();
    TileRow row;
    row.q = address<const std::byte>(args.q, token * args.q.stride(0) + head * args.q.stride(1));
    row.out = address<std::byte>(args.out, token * args.out.stride(0) + head * args.out.stride(1));
    if (problem.lse) {
      row.lse = args.lse.as<float>() + head * args.lse.stride(0) + token * args.lse.stride(1);
    }
    if (problem.sinks) row.sink = options.sinks.as<const float>() + head * options.sinks.stride(0);
    row.visible = problem.mask.visible(s, i);
    if (problem.alibi && !row.visible.empty()) {
      const std::int64_t n = slopes.rank() == 2 ? work.sequence * slopes.stride(0) : 0;
      row.slope = slopes.as<const float>()[n + head * slopes.stride(-1)];
      const std::int64_t centre = i + problem.mask.shift(s);
      row.diagonal = std::clamp(centre, row.visible.begin, row.visible.end - 1);
      row.lse_offset = -double{row.slope} * std::abs(static_cast<double>(centre - row.diagonal));
    }
    rows[r] = row;
  }
}

}  // namespace packattn::cpu
