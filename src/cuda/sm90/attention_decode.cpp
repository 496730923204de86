// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/attention_decode.h"

#include <numeric>

#include "cuda/sm90/attention_forward.h"

namespace packattn::cuda::sm90 {
namespace {

/// Partial results take at most this much. What does not fit is folded by the block that computed
/// it: the same bits, in longer time where a batch is uneven.
constexpr std::int64_t most_scratch_floats = std::int64_t{16} << 20;

/// What the host can say about the sequences that are decode's.
struct ShortSequences {
  bool any = false, others = false;
  std::int64_t longest_q = 0;  ///< query tokens
  std::int64_t splits = 0;     ///< of them all
  std::int64_t most_splits = 0;
};

std::int64_t splits_of(std::int64_t keys) {
  const std::int64_t size = decode_split(static_cast<std::int32_t>(keys));
  return (keys + size - 1) / size;
}

ShortSequences find_short(const AttentionCall& call) {
  const std::int64_t tokens = decode_tokens(call.problem.group());
  ShortSequences found;
  if (!call.batch.host_known()) {
    const std::int64_t rows = call.args.q.size(0);
    found.any = true;
    found.others = rows > tokens;
    found.longest_q = std::min(rows, tokens);
    found.most_splits = splits_of(std::min(key_bound(call), longest_sequence - 1));
    found.splits = call.batch.size() * found.most_splits;
    return found;
  }
  for (const Sequence& s : call.batch.sequences()) {
    if (s.q_length == 0) continue;
    if (s.q_length > tokens) {
      found.others = true;
      continue;
    }
    const std::int64_t splits = splits_of(s.k_length);
    found.any = true;
    found.longest_q = std::max(found.longest_q, s.q_length);
    found.splits += splits;
    found.most_splits = std::max(found.most_splits, splits);
  }
  // Rows that belong to no sequence are cleared by whoever runs, if only sequences without rows do.
  if (!found.others) found.any = true;
  return found;
}

}  // namespace

std::size_t DecodePlan::workspace_bytes() const {
  return DeviceWorkspace::aligned(scratch_floats * sizeof(float)) +
         DeviceWorkspace::aligned(total_floats * sizeof(float)) +
         DeviceWorkspace::aligned(tiles * sizeof(std::int32_t));
}

std::optional<Bucket> decode_bucket(const AttentionProblem& p) {
  const auto bucket = attention_bucket(p);
  return bucket == Bucket::d256 ? std::nullopt : bucket;
}

DecodePlan plan_decode(const AttentionCall& call, Bucket bucket, std::int64_t tile_bound) {
  DecodePlan result;
  const ShortSequences found = find_short(call);
  result.any = found.any;
  result.others = found.others;
  if (!found.any) return result;

  const AttentionProblem& p = call.problem;
  const int processors = properties(p.device.index).multiprocessors;
  DecodeLaunch& how = result.how;
  how.bucket = bucket;
  how.head_chunk = decode_heads(p.group());
  how.head_slots =
      static_cast<std::int32_t>(p.heads_k * ((p.group() + how.head_chunk - 1) / how.head_chunk));
  how.row_bound = static_cast<std::int32_t>(found.longest_q * how.head_chunk);
  how.combines = found.most_splits > 1;
  const std::int64_t slot = how.head_slots * decode_floats(how.row_bound, decode_value(bucket));
  const std::int64_t capacity =
      how.combines ? std::min(found.splits, most_scratch_floats / slot) : 0;
  how.capacity = static_cast<std::int32_t>(capacity);
  const std::int64_t items = std::max(found.splits, call.batch.size()) * how.head_slots;
  how.blocks = static_cast<std::int32_t>(std::clamp<std::int64_t>(items, 1, processors));
  how.combine_blocks = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(tile_bound * how.head_slots * how.row_bound, 1, 16 * processors));
  result.scratch_floats = static_cast<std::size_t>(capacity * slot);
  if (how.combines) {
    result.total_floats =
        static_cast<std::size_t>(std::int64_t{how.blocks} * decode_warps(bucket) *
                                 decode_floats(how.row_bound, decode_value(bucket)));
  }
  result.tiles = static_cast<std::size_t>(tile_bound);
  return result;
}

void run_decode(const DecodePlan& plan, const AttentionCall& call, AttentionRun& now) {
  DecodeLaunch how = plan.how;
  how.scratch = now.workspace.take<float>(plan.scratch_floats);
  how.totals = now.workspace.take<float>(plan.total_floats);
  how.slots = now.workspace.take<std::int32_t>(plan.tiles);
  how.part_keys =
      call.problem.paged
          ? static_cast<std::int32_t>(std::gcd<std::int64_t>(decode_keys, call.problem.page_size))
          : decode_keys;
  how.k = key_map(call, call.args.k, how.part_keys);
  how.v = key_map(call, call.args.v, how.part_keys);
  launch_attention_decode(now.params, how, call.problem.dtype, now.stream);
}

}  // namespace packattn::cuda::sm90
