// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_plan.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include <cuda_runtime_api.h>

#include "cuda/cuda.h"
#include "errors/fault_list.h"

namespace packattn::cuda {
namespace {

constexpr std::size_t aligned(std::size_t bytes) { return DeviceWorkspace::aligned(bytes); }

/// Host arrays in the planner's own order.
struct HostSchedule {
  std::vector<DeviceSequence> sequences;
  std::vector<Gap> gaps;
  std::vector<Tile> tiles;
};

std::vector<Gap> gaps_of(const PackedBatch& batch, std::int64_t rows_q) {
  std::vector<Gap> gaps;
  if (batch.capacity()) {
    std::vector<Gap> owned;
    for (const Sequence& s : batch.sequences()) {
      if (s.q_length > 0) owned.push_back({s.q_start, s.q_start + s.q_length});
    }
    std::sort(owned.begin(), owned.end(),
              [](const Gap& a, const Gap& b) { return a.begin < b.begin; });
    std::int64_t next = 0;
    for (const Gap& range : owned) {
      gaps.push_back({next, range.begin});
      next = range.end;
    }
    gaps.push_back({next, rows_q});
  }
  gaps.resize(batch.sequences().size() + 1, Gap{0, 0});
  return gaps;
}

HostSchedule make_schedule(const PackedBatch& batch, std::int64_t rows_q, int tile_rows) {
  HostSchedule schedule{.sequences = {}, .gaps = gaps_of(batch, rows_q), .tiles = {}};
  std::vector<std::vector<std::int32_t>> classes(weight_classes);
  for (const Sequence& s : batch.sequences()) {
    const auto n = static_cast<std::int32_t>(schedule.sequences.size());
    schedule.sequences.push_back({s.q_start, s.k_start, static_cast<std::int32_t>(s.q_length),
                                  static_cast<std::int32_t>(s.k_length)});
    const int weight = weight_class(static_cast<std::int32_t>(s.k_length));
    classes[static_cast<std::size_t>(weight)].push_back(n);
  }
  for (int weight = weight_classes - 1; weight >= 0; --weight) {
    for (const std::int32_t n : classes[static_cast<std::size_t>(weight)]) {
      const std::int32_t length = schedule.sequences[static_cast<std::size_t>(n)].q_length;
      for (std::int32_t tile = (length + tile_rows - 1) / tile_rows; tile-- > 0;) {
        schedule.tiles.push_back({n, tile * tile_rows});
      }
    }
  }
  return schedule;
}

/// The stream that uploads run on: never captured, never waited for by anybody else.
cudaStream_t upload_stream(int device) {
  static std::mutex mutex;
  static std::map<int, cudaStream_t> streams;
  const std::lock_guard lock(mutex);
  auto [at, fresh] = streams.try_emplace(device, nullptr);
  if (fresh) {
    check(cudaStreamCreateWithFlags(&at->second, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  return at->second;
}

DeviceBoundaries boundaries(const TensorView& t) {
  return {.data = t.data(), .stride = t.stride(0), .wide = t.dtype() == DType::i64};
}

}  // namespace

std::byte* upload(const void* bytes, std::size_t size, Device device) {
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  void* memory = nullptr;
  check(cudaMalloc(&memory, size), "cudaMalloc");
  const cudaStream_t stream = upload_stream(device.index);
  const cudaError_t copied = cudaMemcpyAsync(memory, bytes, size, cudaMemcpyHostToDevice, stream);
  // Waits for this copy alone, once per batch: any stream may read the memory afterwards.
  const cudaError_t done = copied == cudaSuccess ? cudaStreamSynchronize(stream) : copied;
  if (done != cudaSuccess) cudaFree(memory);
  check(done, "cudaMemcpyAsync");
  return static_cast<std::byte*>(memory);
}

void read_back(void* to, const void* from, std::size_t bytes, Device device, void* stream) {
  if (const auto fault = device_fault(device)) throw Error({*fault});
  const DeviceGuard guard(device);
  const auto queue = static_cast<cudaStream_t>(stream);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, queue), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(queue), "cudaStreamSynchronize");
}

void release(std::byte* memory, Device device) {
  if (memory == nullptr) return;
  const RelaxedCapture relaxed;
  int previous = 0;
  cudaGetDevice(&previous);
  cudaSetDevice(device.index);
  cudaFree(memory);  // waits for kernels that still read it
  cudaSetDevice(previous);
}

Schedule::Schedule(const PackedBatch& batch, std::int64_t rows_q, Device device, int tile_rows)
    : size_(static_cast<std::int32_t>(batch.size())),
      tile_rows_(tile_rows),
      tile_bound_(max_tiles(rows_q, batch.size(), tile_rows)),
      table_width_(batch.host_known() ? batch.state().pages_per_sequence : 0),
      device_(device) {
  array_bytes_ = aligned(static_cast<std::size_t>(size_) * sizeof(DeviceSequence)) +
                 aligned((static_cast<std::size_t>(size_) + 1) * sizeof(Gap)) +
                 aligned(static_cast<std::size_t>(tile_bound_) * sizeof(Tile)) +
                 aligned(sizeof(std::int32_t)) +
                 aligned(static_cast<std::size_t>(size_ * table_width_) * sizeof(std::int32_t));
  if (batch.host_known()) upload_schedule(batch, rows_q);
}

Schedule::~Schedule() { release(uploaded_, device_); }

DeviceBatch Schedule::layout(std::byte* memory) const {
  DeviceBatch batch{};
  batch.size = size_;
  batch.sequences = reinterpret_cast<DeviceSequence*>(memory);
  memory += aligned(static_cast<std::size_t>(size_) * sizeof(DeviceSequence));
  batch.gaps = reinterpret_cast<Gap*>(memory);
  memory += aligned((static_cast<std::size_t>(size_) + 1) * sizeof(Gap));
  batch.tiles = reinterpret_cast<Tile*>(memory);
  memory += aligned(static_cast<std::size_t>(tile_bound_) * sizeof(Tile));
  batch.tile_count = reinterpret_cast<std::int32_t*>(memory);
  memory += aligned(sizeof(std::int32_t));
  if (table_width_ > 0) {
    batch.block_table = reinterpret_cast<const std::int32_t*>(memory);
    batch.table_stride = table_width_;
  }
  return batch;
}

void Schedule::upload_schedule(const PackedBatch& batch, std::int64_t rows_q) {
  const HostSchedule host = make_schedule(batch, rows_q, tile_rows_);
  std::vector<std::byte> image(array_bytes_);
  const DeviceBatch at = layout(image.data());
  std::copy(host.sequences.begin(), host.sequences.end(), at.sequences);
  std::copy(host.gaps.begin(), host.gaps.end(), at.gaps);
  std::copy(host.tiles.begin(), host.tiles.end(), at.tiles);
  *at.tile_count = static_cast<std::int32_t>(host.tiles.size());
  std::copy(batch.state().block_table.begin(), batch.state().block_table.end(),
            const_cast<std::int32_t*>(at.block_table));

  uploaded_ = packattn::cuda::upload(image.data(), image.size(), device_);
}

DeviceBatch Schedule::prepare(const PlannerInput& input, DeviceWorkspace& workspace,
                              cudaStream_t stream) const {
  if (uploaded_ != nullptr) return layout(uploaded_);
  DeviceBatch batch = layout(workspace.take<std::byte>(array_bytes_));
  batch.block_table = input.block_table;
  batch.table_stride = input.table_stride;
  launch_planner(input, batch, status_word(device_.index, stream), stream);
  return batch;
}

PlannerInput planner_input(const PackedBatch& batch, std::int64_t rows_q, std::int64_t rows_k,
                           std::int64_t pages, std::int64_t page_size, int tile_rows) {
  const BatchSpec& spec = batch.state().on_device;
  PlannerInput input{};
  input.capacity = batch.capacity();
  input.size = static_cast<std::int32_t>(batch.size());
  input.tile_rows = tile_rows;
  input.rows_q = rows_q;
  input.rows_k = rows_k;
  if (batch.host_known()) return input;  // the planner will not run
  input.q = boundaries(spec.cu_seqlens_q);
  if (batch.is_paged()) {
    input.k = boundaries(spec.seqlens_k);
    input.k_is_lengths = true;
    input.block_table = spec.block_table.as<const std::int32_t>();
    input.table_stride = spec.block_table.stride(0);
    input.table_width = spec.block_table.size(1);
    input.pages = pages;
    input.page_size = page_size;
  } else {
    input.k = batch.shares_boundaries() ? input.q : boundaries(spec.cu_seqlens_k);
  }
  return input;
}

// ---- status words -----------------------------------------------------------------------------

namespace {

std::mutex status_mutex;
std::map<std::pair<int, cudaStream_t>, StatusWord*> status_words;

}  // namespace

StatusWord* status_word(int device, cudaStream_t stream) {
  const std::lock_guard lock(status_mutex);
  StatusWord*& word = status_words[{device, stream}];
  if (word == nullptr) {
    const RelaxedCapture relaxed;
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, sizeof(StatusWord), cudaHostAllocPortable | cudaHostAllocMapped),
          "cudaHostAlloc");
    word = new (memory) StatusWord{};
  }
  return word;
}

std::optional<Fault> take_status(Device device, void* stream) {
  StatusWord* word = nullptr;
  {
    const std::lock_guard lock(status_mutex);
    const auto at = status_words.find({device.index, static_cast<cudaStream_t>(stream)});
    if (at == status_words.end()) return {};
    word = at->second;
  }
  const volatile StatusWord& seen = *word;
  if (seen.code == 0) return {};
  static constexpr const char* arguments[] = {
      "cu_seqlens_q", "cu_seqlens_k", "seqlens_k",   "block_table",
      "slots",        "read_slots",   "write_slots", "num_accepted_tokens"};
  Fault fault = make_fault(static_cast<Code>(seen.code),
                           {.argument = arguments[seen.argument],
                            .position = "sequence " + std::to_string(seen.sequence),
                            .value = std::to_string(seen.value),
                            .limit = "what the tensors hold",
                            .note = "found on the device during an earlier call on this stream"});
  word->code = 0;
  return fault;
}

void raise_earlier_fault(int device, cudaStream_t stream) {
  if (auto fault = take_status({DeviceType::cuda, device}, stream)) throw Error({*fault});
}

}  // namespace packattn::cuda
