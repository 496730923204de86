// SPDX-License-Identifier: Apache-2.0
#include "cuda/token_rows.h"

#include <memory>

#include "core/batch_state.h"
#include "cuda/cuda.h"
#include "errors/fault_list.h"

namespace packattn::cuda {
namespace {

void require(Device device) {
  if (auto fault = device_fault(device)) throw Error({std::move(*fault)});
}

/// Tokens of padded [B, S, ...] and packed [T, ...], in the widest words that fit both.
TokenCopy token_copy(const TensorView& padded, const TensorView& packed) {
  TokenCopy c{};
  c.padded = padded.data();
  c.packed = packed.data();
  c.batches = padded.size(0);
  c.width = padded.size(1);
  c.row_count = packed.size(0);
  const auto element = static_cast<std::int64_t>(size_of(padded.dtype()));
  TokenShape& token = c.token;
  // Innermost dimensions that are one run on both sides become one.
  std::int64_t run = element;
  int dim = packed.rank() - 1;
  const auto follows = [&](std::int64_t stride) { return stride * element == run; };
  for (; dim >= 1; --dim) {
    if (packed.size(dim) != 1 &&
        (!follows(packed.stride(dim)) || !follows(padded.stride(dim + 1)))) {
      break;
    }
    run *= packed.size(dim);
  }
  std::uintptr_t common = reinterpret_cast<std::uintptr_t>(c.padded) |
                          reinterpret_cast<std::uintptr_t>(c.packed) |
                          static_cast<std::uintptr_t>(run);
  const auto bytes = [&](std::int64_t stride) {
    common |= static_cast<std::uintptr_t>(stride * element);
    return stride * element;
  };
  c.batch_stride = bytes(padded.size(0) > 1 ? padded.stride(0) : 0);
  c.position_stride = bytes(padded.size(1) > 1 ? padded.stride(1) : 0);
  c.row_stride = bytes(packed.size(0) > 1 ? packed.stride(0) : 0);
  const int outer = dim;
  for (dim = 1; dim <= outer; ++dim) {
    const auto at = static_cast<std::size_t>(token.dims++);
    token.size[at] = packed.size(dim);
    token.padded_stride[at] = bytes(padded.stride(dim + 1));
    token.packed_stride[at] = bytes(packed.stride(dim));
  }
  c.word_bytes = 16;
  while (common % static_cast<std::uintptr_t>(c.word_bytes) != 0) c.word_bytes /= 2;
  const std::int64_t word = c.word_bytes;
  c.batch_stride /= word;
  c.position_stride /= word;
  c.row_stride /= word;
  for (std::size_t i = 0; i < static_cast<std::size_t>(token.dims); ++i) {
    token.padded_stride[i] /= word;
    token.packed_stride[i] /= word;
    token.words *= token.size[i];
  }
  const auto last = static_cast<std::size_t>(token.dims++);
  token.size[last] = run / word;
  token.padded_stride[last] = token.packed_stride[last] = 1;
  token.words *= token.size[last];
  return c;
}

/// The masked positions of a batch in device memory, put there once.
struct RowList : Plan {
  RowList(const std::vector<std::int64_t>& rows, Device where) : device(where) {
    const DeviceGuard guard(device);
    memory = upload(rows.data(), rows.size() * sizeof(std::int64_t), device);
  }
  ~RowList() override { release(memory, device); }
  RowList(const RowList&) = delete;
  RowList& operator=(const RowList&) = delete;
  Device device;
  std::byte* memory = nullptr;
};

struct SequencePlan : Plan {
  SequencePlan(const PackedBatch& batch, std::int64_t rows, Device device)
      : schedule(batch, rows, device, whole_sequence) {}
  Schedule schedule;
};

}  // namespace

void copy_tokens(const TensorView& padded, const PackedBatch& batch, const TensorView& packed,
                 Side side, bool packing, void* raw_stream) {
  const Device device = padded.device();
  require(device);
  const DeviceGuard guard(device);
  const auto stream = static_cast<cudaStream_t>(raw_stream);
  raise_earlier_fault(device.index, stream);
  TokenCopy copy = token_copy(padded, packed);
  copy.packing = packing;
  copy.keys = side == Side::key;
  const detail::BatchState& state = batch.state();
  const LayerProblem problem{.device = device, .rows = packed.size(0), .width = copy.keys ? 1 : 0};
  const std::vector<std::int64_t>& masked = state.side(side).padded_rows;
  if (!masked.empty()) {
    const auto list = state.plans.get(
        "pack rows", problem, 0,
        [&]() -> std::shared_ptr<const Plan> { return std::make_shared<RowList>(masked, device); });
    copy.rows = reinterpret_cast<const std::int64_t*>(static_cast<const RowList&>(*list).memory);
    copy.row_count = static_cast<std::int64_t>(masked.size());
    launch_token_copy(copy, stream);
    return;
  }
  const auto plan = state.plans.get("pack", problem, 0, [&]() -> std::shared_ptr<const Plan> {
    return std::make_shared<SequencePlan>(batch, packed.size(0), device);
  });
  const Schedule& schedule = static_cast<const SequencePlan&>(*plan).schedule;
  DeviceWorkspace workspace({.stream = raw_stream}, schedule.workspace_bytes());
  // Both sides are held against the rows of the one that is moved.
  const PlannerInput input =
      planner_input(batch, packed.size(0), packed.size(0), 0, 1, whole_sequence);
  copy.sequences = schedule.prepare(input, workspace, stream).sequences;
  launch_token_copy(copy, stream);
}

void merge_states(const MergeArgs& args, void* stream) {
  const Device device = args.out_a.device();
  require(device);
  const DeviceGuard guard(device);
  MergeParams p{};
  p.out_a = args.out_a.data();
  p.out_b = args.out_b.data();
  p.out = args.out.data();
  p.lse_a = args.lse_a.as<const float>();
  p.lse_b = args.lse_b.as<const float>();
  p.lse = args.lse.as<float>();
  const TensorView* outs[] = {&args.out_a, &args.out_b, &args.out};
  const TensorView* lses[] = {&args.lse_a, &args.lse_b, &args.lse};
  for (std::size_t i = 0; i < 3; ++i) {
    p.token_stride[i] = outs[i]->stride(0);
    p.head_stride[i] = outs[i]->stride(1);
    p.lse_head_stride[i] = lses[i]->stride(0);
    p.lse_token_stride[i] = lses[i]->stride(1);
  }
  p.dtype = args.out_a.dtype();
  p.out_dtype = args.out.dtype();
  p.tokens = args.out.size(0);
  p.heads = args.out.size(1);
  p.width = args.out.size(2);
  launch_merge(p, static_cast<cudaStream_t>(stream));
}

}  // namespace packattn::cuda
