// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/batch_state.h"
#include "cuda/runtime.h"

namespace packattn::cuda {

/// A sequence as kernels read it. A sequence whose boundaries are wrong has no rows and -1 keys.
struct DeviceSequence {
  std::int64_t q_start;
  std::int64_t k_start;
  std::int32_t q_length;
  std::int32_t k_length;
};

/// Query rows that belong to no sequence and have to be cleared.
struct Gap {
  std::int64_t begin;
  std::int64_t end;
};

/// Query rows [row, row + tile_rows) of one sequence.
struct Tile {
  std::int32_t sequence;
  std::int32_t row;
};

/// Whose values a status word is about.
enum class StatusArgument {
  cu_seqlens_q,
  cu_seqlens_k,
  seqlens_k,
  block_table,
  slots,
  read_slots,
  write_slots,
  num_accepted_tokens,
};

/// What is wrong with boundaries or slots that only the device sees. Lowest sequence wins.
struct StatusWord {
  std::int32_t code;      ///< 0 if all is well
  std::int32_t argument;  ///< a StatusArgument
  std::int64_t sequence;
  std::int64_t value;
};

/// The schedule in device memory.
struct DeviceBatch {
  DeviceSequence* sequences;        ///< [size]
  Gap* gaps;                        ///< [size + 1], most of them empty
  Tile* tiles;                      ///< the heaviest first
  const std::int32_t* block_table;  ///< null unless paged
  std::int64_t table_stride;
  std::int32_t* tile_count;
  std::int32_t size;
};

/// Boundaries in device memory, int32 or int64.
struct DeviceBoundaries {
  const void* data;
  std::int64_t stride;
  bool wide;
};

struct PlannerInput {
  DeviceBoundaries q, k;
  bool k_is_lengths;  ///< k holds lengths (paged), not running ends
  bool capacity;
  std::int32_t size;
  std::int32_t tile_rows;
  std::int64_t rows_q, rows_k;      ///< of the tensors
  const std::int32_t* block_table;  ///< null unless paged
  std::int64_t table_stride, table_width, pages, page_size;
};

/// Order of tiles: descending in half octaves of the keys of their sequence, then by sequence.
constexpr int weight_classes = 64;
constexpr int weight_class(std::int32_t keys) {
  if (keys <= 0) return 0;
  int octave = 0;
  while ((keys >> octave) > 1) ++octave;
  const int half = octave > 0 ? (keys >> (octave - 1)) & 1 : 0;
  return 2 * octave + 1 + half;
}

/// Rows of a tile that is a whole sequence: the schedule is then a list of sequences.
constexpr std::int32_t whole_sequence = 1 << 30;

/// Device memory with these bytes, ready for any stream; its release waits for kernels that may
/// still read it, of whatever stream, once a batch.
std::byte* upload(const void* bytes, std::size_t size, Device device);
void release(std::byte* memory, Device device);

/// Tiles that a batch can have at most, whatever its lengths.
constexpr std::int64_t max_tiles(std::int64_t rows, std::int64_t size, std::int64_t tile_rows) {
  return rows / tile_rows + size;
}

/// The schedule of a call: uploaded once per batch if the host knows the boundaries, made by the
/// planner kernel in the workspace of each call if only the device does.
class Schedule {
 public:
  Schedule(const PackedBatch& batch, std::int64_t rows_q, Device device, int tile_rows);
  ~Schedule();
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  /// Device memory that `prepare` takes from the workspace; 0 if the schedule was uploaded.
  std::size_t workspace_bytes() const { return uploaded_ != nullptr ? 0 : array_bytes_; }
  /// The host knew the boundaries: `uploaded` is the schedule, of any stream.
  bool ready() const { return uploaded_ != nullptr; }
  DeviceBatch uploaded() const { return layout(uploaded_); }
  /// Ready to be read by kernels launched on `stream` after this.
  DeviceBatch prepare(const PlannerInput& input, DeviceWorkspace& workspace,
                      cudaStream_t stream) const;
  /// An upper bound of the tiles, known without reading anything back.
  std::int64_t tile_bound() const { return tile_bound_; }
  int tile_rows() const { return tile_rows_; }

 private:
  DeviceBatch layout(std::byte* memory) const;
  void upload_schedule(const PackedBatch& batch, std::int64_t rows_q);

  std::int32_t size_;
  int tile_rows_;
  std::int64_t tile_bound_;
  std::size_t array_bytes_;
  std::int64_t table_width_;  ///< of an uploaded block table
  Device device_;
  std::byte* uploaded_ = nullptr;
};

/// What the planner has to read, from the batch and the call's tensors.
PlannerInput planner_input(const PackedBatch& batch, std::int64_t rows_q, std::int64_t rows_k,
                           std::int64_t pages, std::int64_t page_size, int tile_rows);

/// The planner kernel: checks boundaries, makes the schedule, writes the status word.
void launch_planner(const PlannerInput& input, const DeviceBatch& batch, StatusWord* status,
                    cudaStream_t stream);

/// The status word of a stream: pinned, written by planners, read by the host without waiting.
StatusWord* status_word(int device, cudaStream_t stream);

/// Throws what an earlier call on this stream left in its status word.
void raise_earlier_fault(int device, cudaStream_t stream);

}  // namespace packattn::cuda
