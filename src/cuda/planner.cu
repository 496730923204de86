// SPDX-License-Identifier: Apache-2.0
// The device planner: one block reads boundaries that only the device has, refuses what is wrong,
// and writes the same schedule that the host would have made.
//
// A sequence is refused when its running ends decrease, reach past the tensor, start before an
// earlier end, or name pages that the cache does not have. It then has no rows and no keys, and its
// rows become gaps; the others are unaffected. Two prefix maxima decide: over all entries, which
// sequences overlap something before them; over the valid ends, where the gaps are.
//
// Boundaries that only ever rise need neither: the prefix maxima are run where an entry is wrong.
//
// Tiles are sorted by weight class, heaviest first, by a stable counting sort: a histogram, a scan
// over the classes, and a pass in sequence order. One block suffices: the time is that of a few
// passes over N sequences, a thread each. A block table is read by all threads at once.
#include "cuda/boundaries.cuh"

namespace packattn::cuda {
namespace {

constexpr int threads = 1024;
constexpr int warps = threads / 32;

/// A sequence's tiles, for its neighbours.
struct Tiles { std::int32_t weight, count; };

struct Shared {
  std::int32_t histogram[weight_classes];
  std::int32_t offset[weight_classes];
  std::int32_t warp_tiles[warps][weight_classes];
  Tiles tiles[threads];
  std::int64_t warp_max[warps];
  std::int32_t pages[threads];       ///< that a sequence needs
  std::int32_t wrong_page[threads];  ///< the first that the cache does not have
  int irregular;
  long long lowest_fault;
};

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

/// Keys and pages of the chunk's sequences: threads that share a sequence read its table together.
/// Every thread calls it; it answers for sequence n.
__device__ bool check_pages(const PlannerInput& in, Shared& shared, std::int32_t n,
                            std::int64_t keys, Finding& finding) {
  const int chunk = n - thread_index();
  const int sequences = min(in.size - chunk, threads);
  const bool active = n < in.size;
  const bool countable = active && keys >= 0 && keys <= INT32_MAX;
  const std::int64_t needed = countable ? (keys + in.page_size - 1) / in.page_size : 0;
  const bool fits = needed <= in.table_width;
  shared.pages[thread_index()] = fits ? static_cast<std::int32_t>(needed) : 0;
  shared.wrong_page[thread_index()] = INT32_MAX;
  __syncthreads();
  int team = threads;
  while (team > 8 && team * sequences > threads) team /= 2;
  for (int i = thread_index() / team; i < sequences; i += threads / team) {
    const std::int32_t* table = in.block_table + (chunk + i) * in.table_stride;
    std::int32_t wrong = INT32_MAX;
    // No way out at the first: the loads would wait for one another.
#pragma unroll 4
    for (std::int32_t at = thread_index() % team; at < shared.pages[i]; at += team) {
      const std::int32_t page = table[at];
      if (page < 0 || page >= in.pages) wrong = min(wrong, at);
    }
    if (wrong != INT32_MAX) atomicMin(&shared.wrong_page[i], wrong);
  }
  __syncthreads();
  if (!active) return true;
  if (!countable) finding.note(n, StatusArgument::seqlens_k, Code::length_negative, keys);
  if (!fits) finding.note(n, StatusArgument::block_table, Code::block_table_short, needed);
  const std::int32_t wrong = shared.wrong_page[thread_index()];
  if (wrong != INT32_MAX) {
    finding.note(n, StatusArgument::block_table, Code::block_table_entry,
                 in.block_table[n * in.table_stride + wrong]);
  }
  return countable && fits && wrong == INT32_MAX;
}

__device__ std::int32_t tiles_of(const DeviceSequence& s, std::int32_t tile_rows) {
  return (s.q_length + tile_rows - 1) / tile_rows;
}

/// Entry n of one side and its end are as they have to be if all before them are.
__device__ bool rises(const DeviceBoundaries& b, std::int64_t n, std::int64_t rows) {
  const std::int64_t start = read_boundary(b, n);
  const std::int64_t end = read_boundary(b, n + 1);
  return (n > 0 || start == 0) && start <= end && end <= rows && end - start <= INT32_MAX;
}

/// Largest entries and ends so far.
struct Running { std::int64_t entry_q = 0, entry_k = 0, owned = 0; };

/// A sequence and the end of the rows before it that belong to somebody; `pages` as they are.
__device__ DeviceSequence place_sequence(const PlannerInput& in, Shared& shared, std::int32_t n,
                                         std::int64_t keys, bool pages, Running& running,
                                         std::int64_t& owned, Finding& finding) {
  const bool active = n < in.size;
  // An entry past the tensor must not make the sequences after it look like overlaps.
  const auto entry = [&](const DeviceBoundaries& b, std::int64_t rows) {
    const std::int64_t value = active ? read_boundary(b, n) : 0;
    return value <= rows ? value : 0;
  };
  const std::int64_t floor_q = prefix_max(shared, entry(in.q, in.rows_q), running.entry_q);
  const std::int64_t floor_k =
      in.k_is_lengths ? 0 : prefix_max(shared, entry(in.k, in.rows_k), running.entry_k);
  DeviceSequence s{};
  std::int64_t q_length = 0;
  bool valid = active && read_side(in.q, n, in.rows_q, floor_q, StatusArgument::cu_seqlens_q,
                                   s.q_start, q_length, finding);
  if (active && !in.k_is_lengths) {
    valid = read_side(in.k, n, in.rows_k, floor_k, StatusArgument::cu_seqlens_k, s.k_start, keys,
                      finding) &&
            valid;
  }
  valid = valid && pages;
  owned = prefix_max(shared, valid ? s.q_start + q_length : 0, running.owned);
  if (!valid) return {.q_start = owned, .k_start = 0, .q_length = 0, .k_length = -1};
  s.q_length = static_cast<std::int32_t>(q_length);
  s.k_length = static_cast<std::int32_t>(keys);
  return s;
}

/// First pass: sequences, gaps, the histogram of tiles over weight classes. Returns the thread's
/// sequence of the last chunk.
__device__ DeviceSequence read_sequences(const PlannerInput& in, const DeviceBatch& batch,
                                         Shared& shared, Finding& finding) {
  Running running;
  DeviceSequence s{};
  for (std::int32_t chunk = 0; chunk < in.size; chunk += threads) {
    const std::int32_t n = chunk + thread_index();
    const bool active = n < in.size;
    bool regular =
        !active || (rises(in.q, n, in.rows_q) && (in.k_is_lengths || rises(in.k, n, in.rows_k)));
    std::int64_t keys = active && in.k_is_lengths ? read_boundary(in.k, n) : 0;
    Finding of_pages;
    const bool pages = !in.k_is_lengths || check_pages(in, shared, n, keys, of_pages);
    regular = regular && pages;
    if (!regular) shared.irregular = 1;
    __syncthreads();
    std::int64_t owned = 0;
    if (shared.irregular != 0) {
      s = place_sequence(in, shared, n, keys, pages, running, owned, finding);
      if (of_pages.code != 0 && finding.code == 0) finding = of_pages;
    } else {
      if (active) {
        const std::int64_t start = read_boundary(in.q, n);
        const std::int64_t k_start = in.k_is_lengths ? 0 : read_boundary(in.k, n);
        if (!in.k_is_lengths) keys = read_boundary(in.k, n + 1) - k_start;
        s = {.q_start = start,
             .k_start = k_start,
             .q_length = static_cast<std::int32_t>(read_boundary(in.q, n + 1) - start),
             .k_length = static_cast<std::int32_t>(keys)};
      }
      owned = s.q_start;
      const std::int32_t end = min(in.size, chunk + threads);
      running = {.entry_q = read_boundary(in.q, end - 1),
                 .entry_k = in.k_is_lengths ? 0 : read_boundary(in.k, end - 1),
                 .owned = read_boundary(in.q, end)};
    }
    if (active) {
      batch.sequences[n] = s;
      batch.gaps[n] = {owned, s.q_start};
      if (s.q_length > 0) {
        atomicAdd(&shared.histogram[weight_class(s.k_length)], tiles_of(s, in.tile_rows));
      }
    }
  }
  if (thread_index() == 0) {
    batch.gaps[in.size] = {running.owned, in.rows_q};
    const std::int64_t end_q = read_boundary(in.q, in.size);
    if (end_q < in.rows_q && !in.capacity) {
      finding.note(in.size, StatusArgument::cu_seqlens_q, Code::rows_after_end, end_q);
    }
    if (!in.k_is_lengths && !in.capacity && read_boundary(in.k, in.size) < in.rows_k) {
      finding.note(in.size, StatusArgument::cu_seqlens_k, Code::rows_after_end,
                   read_boundary(in.k, in.size));
    }
  }
  return s;
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

/// Tiles that a thread writes for its own sequence; longer lists are written by the warp.
constexpr std::int32_t few_tiles = 8;

/// Second pass, in sequence order: a stable place for each sequence's tiles, last rows first,
/// because under a causal mask they are the longest. `last` is the thread's sequence of the last
/// chunk.
__device__ void write_tiles(const PlannerInput& in, const DeviceBatch& batch,
                            const DeviceSequence& last, Shared& shared) {
  const int lane = lane_index();
  const int warp = warp_index();
  for (std::int32_t chunk = 0; chunk < in.size; chunk += threads) {
    const std::int32_t n = chunk + thread_index();
    const bool is_last = chunk + threads >= in.size;
    DeviceSequence s{};
    if (n < in.size) s = is_last ? last : batch.sequences[n];
    const std::int32_t count = tiles_of(s, in.tile_rows);
    const int mine = weight_class(s.k_length);
    shared.tiles[thread_index()] = {mine, count};
    for (int c = lane; c < weight_classes; c += 32) shared.warp_tiles[warp][c] = 0;
    __syncwarp();
    if (count > 0) atomicAdd(&shared.warp_tiles[warp][mine], count);
    std::int32_t before = shared.offset[mine];
    std::int32_t most = 0;
#pragma unroll 8
    for (int other = 0; other < 32; ++other) {
      const Tiles theirs = shared.tiles[32 * warp + other];
      most = max(most, theirs.count);
      if (other < lane && theirs.weight == mine) before += theirs.count;
    }
    __syncthreads();
#pragma unroll 8
    for (int w = 0; w < warp; ++w) before += shared.warp_tiles[w][mine];
    if (most <= few_tiles) {
      for (std::int32_t i = 0; i < count; ++i) {
        batch.tiles[before + i] = {n, (count - 1 - i) * in.tile_rows};
      }
    } else {
      for (int other = 0; other < 32; ++other) {
        const std::int32_t first = __shfl_sync(all_lanes, before, other);
        const std::int32_t total = __shfl_sync(all_lanes, count, other);
        for (std::int32_t i = lane; i < total; i += 32) {
          batch.tiles[first + i] = {chunk + warp * 32 + other, (total - 1 - i) * in.tile_rows};
        }
      }
    }
    if (is_last) return;
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
  if (thread_index() == 0) {
    shared.irregular = 0;
    shared.lowest_fault = INT64_MAX;
  }
  __syncthreads();
  Finding finding;
  const DeviceSequence last = read_sequences(in, batch, shared, finding);
  report(finding, shared.lowest_fault, status);
  scan_classes(batch, shared);
  __syncthreads();
  write_tiles(in, batch, last, shared);
}

}  // namespace

void launch_planner(const PlannerInput& input, const DeviceBatch& batch, StatusWord* status,
                    cudaStream_t stream) {
  launch("planner", planner, 1, threads, sizeof(Shared), stream, input, batch, status);
}

}  // namespace packattn::cuda
