// SPDX-License-Identifier: Apache-2.0
#include "packattn/packed.h"

#include "core/batch_state.h"

namespace packattn {
namespace {

TensorView view_of(std::span<const std::int64_t> values) {
  // An empty span may have a null pointer, but it was given: a batch of no sequences.
  return TensorView::of(values.data(), {static_cast<std::int64_t>(values.size())});
}

std::vector<std::int64_t> running_ends(std::span<const Sequence> sequences,
                                       std::int64_t Sequence::* length) {
  std::vector<std::int64_t> ends;
  std::int64_t end = 0;
  for (const Sequence& s : sequences) {
    end += s.*length;
    if (s.*length > 0) ends.push_back(end);
  }
  return ends;
}

}  // namespace

PackedBatch::PackedBatch(const BatchSpec& spec) {
  FaultList faults;
  auto state = std::make_shared<detail::BatchState>();
  detail::parse_batch(spec, *state, faults);
  std::move(faults).throw_if_any();
  state_ = std::move(state);
}

PackedBatch::PackedBatch(std::shared_ptr<const detail::BatchState> state)
    : state_(std::move(state)) {}

PackedBatch PackedBatch::from_cu_seqlens(TensorView cu_q, TensorView cu_k, TensorView host_q,
                                         TensorView host_k) {
  return PackedBatch(
      BatchSpec{.cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k, .host_q = host_q, .host_k = host_k});
}

PackedBatch PackedBatch::from_lengths(std::span<const std::int64_t> q,
                                      std::span<const std::int64_t> k) {
  BatchSpec spec{.lengths_q = view_of(q)};
  if (k.data() != nullptr) spec.lengths_k = view_of(k);
  return PackedBatch(spec);
}

PackedBatch PackedBatch::from_starts_and_lengths(std::span<const std::int64_t> starts_q,
                                                 std::span<const std::int64_t> lengths_q,
                                                 std::span<const std::int64_t> starts_k,
                                                 std::span<const std::int64_t> lengths_k) {
  BatchSpec spec{.lengths_q = view_of(lengths_q), .starts_q = view_of(starts_q)};
  if (lengths_k.data() != nullptr) spec.lengths_k = view_of(lengths_k);
  if (starts_k.data() != nullptr) spec.starts_k = view_of(starts_k);
  return PackedBatch(spec);
}

PackedBatch PackedBatch::from_padding_mask(TensorView mask_q, TensorView mask_k) {
  return PackedBatch(BatchSpec{.padding_mask_q = mask_q, .padding_mask_k = mask_k});
}

PackedBatch PackedBatch::from_position_ids(TensorView position_ids) {
  return PackedBatch(BatchSpec{.position_ids = position_ids});
}

PackedBatch PackedBatch::paged(TensorView cu_q, TensorView seqlens_k, TensorView block_table) {
  return PackedBatch(
      BatchSpec{.cu_seqlens_q = cu_q, .seqlens_k = seqlens_k, .block_table = block_table});
}

std::int64_t PackedBatch::size() const { return state_->size; }
std::span<const Sequence> PackedBatch::sequences() const { return state_->sequences; }
bool PackedBatch::host_known() const { return state_->host_known; }
std::int64_t PackedBatch::rows_q() const { return state_->q.rows; }
std::int64_t PackedBatch::rows_k() const { return state_->side(Side::key).rows; }
std::int64_t PackedBatch::max_seqlen_q() const { return state_->max_q; }
std::int64_t PackedBatch::max_seqlen_k() const { return state_->max_k; }
bool PackedBatch::shares_boundaries() const { return state_->shared; }
bool PackedBatch::capacity() const { return state_->capacity; }
bool PackedBatch::is_paged() const { return state_->paged; }

std::span<const std::int32_t> PackedBatch::block_table(std::int64_t sequence) const {
  const auto width = static_cast<std::size_t>(state_->pages_per_sequence);
  return std::span(state_->block_table).subspan(static_cast<std::size_t>(sequence) * width, width);
}

std::vector<std::int64_t> PackedBatch::actual_seq_lengths_q() const {
  return running_ends(sequences(), &Sequence::q_length);
}

std::vector<std::int64_t> PackedBatch::actual_seq_lengths_kv() const {
  return running_ends(sequences(), &Sequence::k_length);
}

std::vector<Fault> check_batch(const BatchSpec& spec) {
  FaultList faults;
  detail::BatchState state;
  detail::parse_batch(spec, state, faults);
  return std::move(faults).take();
}

}  // namespace packattn
