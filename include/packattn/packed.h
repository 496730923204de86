// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "packattn/error.h"
#include "packattn/export.h"
#include "packattn/implementation.h"
#include "packattn/tensor.h"

namespace packattn {

/// One sequence of a packed batch: its query rows and its key rows.
struct Sequence {
  std::int64_t q_start = 0;
  std::int64_t q_length = 0;
  std::int64_t k_start = 0;  ///< 0 in a paged batch, whose keys live in pages
  std::int64_t k_length = 0;

  friend bool operator==(const Sequence&, const Sequence&) = default;
};

/// Boundaries as a caller has them, unchecked. Fill exactly one form; `PackedBatch` parses it.
/// Boundary tensors are one-dimensional int32 or int64, of any stride, on the host or a device.
struct BatchSpec {
  // cu_seqlens form: [N + 1] running ends, first entry 0. Without cu_seqlens_k the keys share
  // the queries' boundaries. The host copies belong to boundaries on a device.
  TensorView cu_seqlens_q = {}, cu_seqlens_k = {};
  TensorView host_q = {}, host_k = {};
  // lengths form ([N] each); with starts ([N] each) the sequences may lie anywhere.
  TensorView lengths_q = {}, lengths_k = {};
  TensorView starts_q = {}, starts_k = {};
  // paged form: cu_seqlens_q with seqlens_k [N] and block_table [N, max_pages] int32.
  TensorView seqlens_k = {}, block_table = {};
  // padding masks [B, S], true (non-zero) where there is a token.
  TensorView padding_mask_q = {}, padding_mask_k = {};
  // position ids [T] or [1, T]: a 0 starts a sequence.
  TensorView position_ids = {};

  /// Checked against the lengths when given; otherwise derived.
  std::optional<std::int64_t> max_seqlen_q = {}, max_seqlen_k = {};
  /// Tensors may have rows that belong to no sequence; their outputs are 0 and their lse -inf.
  bool capacity = false;
};

namespace detail {
struct BatchState;
}

/// The boundaries of a packed batch, checked once. Immutable, cheap to copy, usable from many
/// threads. Host boundaries are copied in; boundaries on a device stay the caller's and must
/// outlive the batch. Schedules made for it are kept with it and reused by every layer.
class PACKATTN_EXPORT PackedBatch {
 public:
  /// Throws Error with every PA2xxx fault of the description.
  explicit PackedBatch(const BatchSpec& spec);

  // Each form by name; the shapes are those of BatchSpec. Without a key side the keys share the
  // queries' boundaries. They throw Error with every fault (PA1xxx of a tensor's form, PA2xxx).
  /// Running ends [N + 1], with host copies if the boundaries are on a device.
  static PackedBatch from_cu_seqlens(TensorView cu_q, TensorView cu_k = {}, TensorView host_q = {},
                                     TensorView host_k = {});
  /// Tokens of each sequence, [N]; sequences lie end to end.
  static PackedBatch from_lengths(std::span<const std::int64_t> q,
                                  std::span<const std::int64_t> k = {});
  /// First row and number of rows of each sequence, [N] each; query ranges may not overlap.
  static PackedBatch from_starts_and_lengths(std::span<const std::int64_t> starts_q,
                                             std::span<const std::int64_t> lengths_q,
                                             std::span<const std::int64_t> starts_k = {},
                                             std::span<const std::int64_t> lengths_k = {});
  /// [B, S]: row b of the padded tensor is sequence b, of the tokens where the mask is not 0.
  static PackedBatch from_padding_mask(TensorView mask_q, TensorView mask_k = {});
  /// [T] or [1, T], 0, 1, 2, ... of each sequence.
  static PackedBatch from_position_ids(TensorView position_ids);
  /// cu_q [N + 1], seqlens_k [N], block_table [N, max_pages] int32: key j of sequence n lies in
  /// page block_table[n][j / page_size].
  static PackedBatch paged(TensorView cu_q, TensorView seqlens_k, TensorView block_table);

  /// Number of sequences.
  std::int64_t size() const;
  /// Empty if the boundaries are only on a device.
  std::span<const Sequence> sequences() const;
  bool host_known() const;
  /// Rows that the boundaries need at least: one past the last row of any sequence.
  std::int64_t rows_q() const;
  std::int64_t rows_k() const;
  std::int64_t max_seqlen_q() const;
  std::int64_t max_seqlen_k() const;
  bool shares_boundaries() const;  ///< keys use the queries' boundaries
  bool capacity() const;
  bool is_paged() const;
  /// Page numbers of one sequence, as many as its keys need; the page size is the cache's.
  std::span<const std::int32_t> block_table(std::int64_t sequence) const;

  /// Running ends without empty sequences, as NPU operators take them.
  std::vector<std::int64_t> actual_seq_lengths_q() const;
  std::vector<std::int64_t> actual_seq_lengths_kv() const;

  // For the library's own use.
  explicit PackedBatch(std::shared_ptr<const detail::BatchState> state);
  const detail::BatchState& state() const { return *state_; }

 private:
  std::shared_ptr<const detail::BatchState> state_;
};

/// All faults of a description; empty if PackedBatch would accept it.
PACKATTN_EXPORT std::vector<Fault> check_batch(const BatchSpec& spec);

/// Which boundaries of the batch a tensor follows.
enum class Side { query, key };

/// Copies the tokens of `padded` [B, S, ...] to `packed` [T, ...]. A batch made from a padding mask
/// takes the masked positions; any other takes positions 0 .. length - 1 of each row.
/// Same dtype and trailing shape; any strides; on the host or a CUDA device, in stream order there.
/// Of boundaries that only the device knows, a sequence longer than S keeps its first S tokens.
/// Raises PA1xxx, PA2xxx, PA4xxx.
PACKATTN_EXPORT void pack(const TensorView& padded, const PackedBatch& batch,
                          const TensorView& packed, Side side = Side::query,
                          const Context& context = {});

/// The inverse of `pack`; positions of `padded` without a token are set to 0.
PACKATTN_EXPORT void unpack(const TensorView& packed, const PackedBatch& batch,
                            const TensorView& padded, Side side = Side::query,
                            const Context& context = {});

}  // namespace packattn
