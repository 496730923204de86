// SPDX-License-Identifier: Apache-2.0
// The device planner: one block reads boundaries that only the device has, refuses what is wrong,
// and writes the same schedule that the host would have made.
//
// A sequence is refused when its running ends decrease, reach past the tensor, start before an
// earlier end, or name pages that the cache does not have. It then has no rows and no keys, and its
// rows become gaps; the others are unaffected. Two prefix maxima decide: over all entries, which
// sequences overlap something before them; over the valid ends, where the gaps are.
//
// Tiles are sorted by weight class, heaviest first, by a stable counting sort: a histogram, a scan
// over the classes, and a pass in sequence order. One block suffices: the time is that of a few
// passes over N sequences.
#include "cuda/status.cuh"

namespace packattn::cuda {
namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;

struct Shared {
  std::int32_t histogram[weight_classes];
  std::int32_t offset[weight_classes];
  std::int32_t warp_tiles[warps][weight_classes];
  std::int64_t warp_max[warps];
  long long lowest_fault;
};

__device__ std::int64_t read(const DeviceBoundaries& b, std::int64_t i) {
  return b.wide ? static_cast<const std::int64_t*>(b.data)[i * b.stride]
                : static_cast<const std::int32_t*>(b.data)[i * b.stride];
}

/// Exclusive prefix maximum over the block's threads, on top of `running`, which moves on.
__device__ std::int64_t prefix_max(Shared& shared, std::int64_t value, std::int64_t& running) {
  const int lane = lane_index();
  const int warp = warp_index();
  std::int64_t inclusive = value;
  for (int step = 1; step < 32; step *= 2) {
    const std::int64_t other = __shfl_up_sync(all_lanes, inclusive, step);
    if (lane >= step) inclusive = max(inclusive, other);
  }
  if (lane == 31) shared.warp_max[warp] = inclusive;
  __syncthreads();
  std::int64_t before = running;
  for (int w = 0; w < warps; ++w) {
    if (w < warp) before = max(before, shared.warp_max[w]);
    running = max(running, shared.warp_max[w]);
  }
  const std::int64_t up = __shfl_up_sync(all_lanes, inclusive, 1);
  __syncthreads();
  return lane > 0 ? max(before, up) : before;
}

/// One side of sequence n. `floor` is the largest entry before it.
__device__ bool read_side(const DeviceBoundaries& b, std::int64_t n, std::int64_t rows,
                          std::int64_t floor, StatusArgument argument, std::int64_t& start,
                          std::int64_t& length, Finding& finding) {
  start = read(b, n);
  const std::int64_t end = read(b, n + 1);
  length = end - start;
  const bool starts = n > 0 || start == 0;
  const bool rises = length >= 0 && start >= floor;
  if (!starts) finding.note(n, argument, Code::boundaries_start, start);
  if (!rises) finding.note(n, argument, Code::boundaries_decrease, end);
  if (end > rows) finding.note(n, argument, Code::boundaries_end, end);
  return starts && rises && end <= rows && length <= INT32_MAX;
}

__device__ bool check_pages(const PlannerInput& in, std::int64_t n, std::int64_t keys,
                            Finding& finding) {
  if (keys < 0 || keys > INT32_MAX) {
    finding.note(n, StatusArgument::seqlens_k, Code::length_negative, keys);
    return false;
  }
  const std::int64_t needed = (keys + in.page_size - 1) / in.page_size;
  if (needed > in.table_width) {
    finding.note(n, StatusArgument::block_table, Code::block_table_short, needed);
    return false;
  }
  for (std::int64_t i = 0; i < needed; ++i) {
    const std::int32_t page = in.block_table[n * in.table_stride + i];
    if (page >= 0 && page < in.pages) continue;
    finding.note(n, StatusArgument::block_table, Code::block_table_entry, page);
    return false;
  }
  return true;
}

__device__ std::int32_t tiles_of(const DeviceSequence& s, std::int32_t tile_rows) {
  return (s.q_length + tile_rows - 1) / tile_rows;
}

/// First pass: sequences, gaps, the histogram of tiles over weight classes.
__device__ void read_sequences(const PlannerInput& in, const DeviceBatch& batch, Shared& shared,
                               Finding& finding) {
  std::int64_t entries_q = 0;
  std::int64_t entries_k = 0;
  std::int64_t owned = 0;
  for (std::int32_t chunk = 0; chunk < in.size; chunk += threads) {
    const std::int32_t n = chunk + thread_index();
    const bool active = n < in.size;
    // An entry past the tensor must not make the sequences after it look like overlaps.
    const auto entry = [&](const DeviceBoundaries& b, std::int64_t rows) {
      const std::int64_t value = active ? read(b, n) : 0;
      return value <= rows ? value : 0;
    };
    const std::int64_t floor_q = prefix_max(shared, entry(in.q, in.rows_q), entries_q);
    const std::int64_t floor_k =
        in.k_is_lengths ? 0 : prefix_max(shared, entry(in.k, in.rows_k), entries_k);

    DeviceSequence s{};
    std::int64_t q_length = 0;
    std::int64_t k_length = 0;
    bool valid = active && read_side(in.q, n, in.rows_q, floor_q, StatusArgument::cu_seqlens_q,
                                     s.q_start, q_length, finding);
    if (active && in.k_is_lengths) {
      k_length = read(in.k, n);
      valid = check_pages(in, n, k_length, finding) && valid;
    } else if (active) {
      valid = read_side(in.k, n, in.rows_k, floor_k, StatusArgument::cu_seqlens_k, s.k_start,
                        k_length, finding) &&
              valid;
    }
    const std::int64_t gap = prefix_max(shared, valid ? s.q_start + q_length : 0, owned);
    if (active) {
      if (!valid) s = {.q_start = gap};
      s.q_length = valid ? static_cast<std::int32_t>(q_length) : 0;
      s.k_length = valid ? static_cast<std::int32_t>(k_length) : -1;
      batch.sequences[n] = s;
      batch.gaps[n] = {gap, s.q_start};
      if (s.q_length > 0) {
        atomicAdd(&shared.histogram[weight_class(s.k_length)], tiles_of(s, in.tile_rows));
      }
    }
  }
  if (thread_index() == 0) {
    batch.gaps[in.size] = {owned, in.rows_q};
    const std::int64_t end_q = read(in.q, in.size);
    if (end_q < in.rows_q && !in.capacity) {
      finding.note(in.size, StatusArgument::cu_seqlens_q, Code::rows_after_end, end_q);
    }
    if (!in.k_is_lengths && !in.capacity && read(in.k, in.size) < in.rows_k) {
      finding.note(in.size, StatusArgument::cu_seqlens_k, Code::rows_after_end,
                   read(in.k, in.size));
    }
  }
}

/// Where each weight class begins; the heaviest first. A warp, two classes a lane.
__device__ void scan_classes(const DeviceBatch& batch, Shared& shared) {
  static_assert(weight_classes == 64);
  if (warp_index() != 0) return;
  const int upper = weight_classes - 1 - 2 * lane_index();
  const std::int32_t own = shared.histogram[upper] + shared.histogram[upper - 1];
  std::int32_t end = own;
  for (int step = 1; step < 32; step *= 2) {
    const std::int32_t other = __shfl_up_sync(all_lanes, end, step);
    if (lane_index() >= step) end += other;
  }
  shared.offset[upper] = end - own;
  shared.offset[upper - 1] = end - own + shared.histogram[upper];
  if (lane_index() == 31) *batch.tile_count = end;
}

/// Second pass, in sequence order: a stable place for each sequence's tiles, last rows first,
/// because under a causal mask they are the longest.
__device__ void write_tiles(const PlannerInput& in, const DeviceBatch& batch, Shared& shared) {
  const int lane = lane_index();
  const int warp = warp_index();
  for (std::int32_t chunk = 0; chunk < in.size; chunk += threads) {
    const std::int32_t n = chunk + thread_index();
    const DeviceSequence s = n < in.size ? batch.sequences[n] : DeviceSequence{};
    const std::int32_t count = tiles_of(s, in.tile_rows);
    const int mine = weight_class(s.k_length);
    for (int c = lane; c < weight_classes; c += 32) shared.warp_tiles[warp][c] = 0;
    __syncwarp();
    if (count > 0) atomicAdd(&shared.warp_tiles[warp][mine], count);
    std::int32_t before = 0;
    for (int other = 0; other < 32; ++other) {
      const int their_class = __shfl_sync(all_lanes, mine, other);
      const std::int32_t their_count = __shfl_sync(all_lanes, count, other);
      if (other < lane && their_class == mine) before += their_count;
    }
    __syncthreads();
    for (int w = 0; w < warp; ++w) before += shared.warp_tiles[w][mine];
    before += shared.offset[mine];
    for (int other = 0; other < 32; ++other) {
      const std::int32_t first = __shfl_sync(all_lanes, before, other);
      const std::int32_t total = __shfl_sync(all_lanes, count, other);
      for (std::int32_t i = lane; i < total; i += 32) {
        batch.tiles[first + i] = {chunk + warp * 32 + other, (total - 1 - i) * in.tile_rows};
      }
    }
    __syncthreads();
    if (thread_index() < weight_classes) {
      for (int w = 0; w < warps; ++w) {
        shared.offset[thread_index()] += shared.warp_tiles[w][thread_index()];
      }
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(threads)
    planner(const PlannerInput in, const DeviceBatch batch, StatusWord* status) {
  auto& shared = *shared_memory<Shared>();
  if (thread_index() < weight_classes) shared.histogram[thread_index()] = 0;
  if (thread_index() == 0) shared.lowest_fault = INT64_MAX;
  __syncthreads();
  Finding finding;
  read_sequences(in, batch, shared, finding);
  report(finding, shared.lowest_fault, status);
  scan_classes(batch, shared);
  __syncthreads();
  write_tiles(in, batch, shared);
}

}  // namespace

void launch_planner(const PlannerInput& input, const DeviceBatch& batch, StatusWord* status,
                    cudaStream_t stream) {
  launch("planner", planner, 1, threads, sizeof(Shared), stream, input, batch, status);
}

}  // namespace packattn::cuda
