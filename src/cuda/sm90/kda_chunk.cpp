// SPDX-License-Identifier: Apache-2.0
// sm90/kda_chunk's row of the list: what it declines, how much workspace it takes, what it
// launches.
#include "cuda/sm90/kda_chunk.h"

#include <algorithm>

#include "core/batch_state.h"
#include "cuda/sm90/sm90.h"
#include "errors/fault_list.h"

namespace packattn::cuda::sm90 {
namespace {

constexpr const char* name = "sm90/kda_chunk";
constexpr std::int64_t chunk_tokens = KdaChunkShape::tokens;
constexpr std::int64_t alignment = 16;
/// Longer batches would overflow the 32-bit positions within a sequence.
constexpr std::int64_t longest_batch = std::int64_t{1} << 30;
/// Images that are kept at a time, of all heads: 2 GB. A batch with more is done in waves.
constexpr std::int64_t most_images = (std::int64_t{2} << 30) / sizeof(KdaImage);
/// A wave has at least one chunk of every sequence.
constexpr std::int64_t most_sequences = 8192;
/// States at work in a wave that give every multiprocessor two.
constexpr std::int64_t enough_states = 264;

/// Whether rows and heads begin at multiples of 16 bytes.
bool aligned(const TensorView& x) {
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype()));
  bool fine = reinterpret_cast<std::uintptr_t>(x.data()) % alignment == 0;
  for (int dim = 0; dim + 1 < x.rank(); ++dim) {
    fine = fine && (x.size(dim) <= 1 || x.stride(dim) * bytes % alignment == 0);
  }
  return fine;
}

/// The first tensor that cannot be read or written 16 bytes at a time.
const char* misaligned(const KdaCall& call) {
  const KdaArgs& a = call.args;
  if (!aligned(a.q)) return "q";
  if (!aligned(a.k)) return "k";
  if (!aligned(a.v)) return "v";
  if (!call.problem.gate_per_head && !aligned(a.g)) return "g";
  return aligned(a.out) ? nullptr : "out";
}

std::optional<Fault> unsupported(std::string what) {
  return make_fault(Code::option_unsupported, {.argument = name, .value = std::move(what)});
}

std::optional<Fault> decline(const KdaCall& call) {
  const KdaProblem& p = call.problem;
  if (auto fault = device_fault(p.device)) return fault;
  if (const int capability = properties(p.device.index).capability; capability != 90) {
    return unsupported("compute capability " + std::to_string(capability / 10) + "." +
                       std::to_string(capability % 10) + ", only 9.0");
  }
  if (p.dtype == DType::f32 || p.out_dtype != p.dtype) {
    return make_fault(Code::dtype_unsupported,
                      {.argument = name,
                       .value = to_string(p.dtype) + " with out in " + to_string(p.out_dtype),
                       .limit = "float16 and bfloat16, out in the same"});
  }
  if (p.key_dim % 8 != 0 || p.value_dim % 8 != 0 || p.key_dim > KdaChunkShape::keys ||
      p.value_dim > KdaChunkShape::largest_value) {
    return make_fault(Code::head_size_unsupported,
                      {.argument = name,
                       .position = "head size",
                       .value = std::to_string(p.key_dim) + " / " + std::to_string(p.value_dim),
                       .limit = "multiples of 8 up to 128 / 256"});
  }
  if (p.chunk_size != chunk_tokens) {
    return unsupported("chunks of " + std::to_string(p.chunk_size) + " tokens, only of 64");
  }
  if (const char* tensor = misaligned(call)) {
    return unsupported(std::string(tensor) + " whose rows are not at multiples of 16 bytes");
  }
  if (call.args.q.size(1) >= longest_batch || call.count > most_sequences) {
    return unsupported(std::to_string(call.args.q.size(1)) + " tokens in " +
                       std::to_string(call.count) + " sequences");
  }
  return {};
}

/// How a call is cut so that its images fit: heads at a time, chunks of each sequence at a time.
/// States go from wave to wave in fp32, so cuts change no bit.
struct Waves {
  std::int64_t heads, all_heads;
  std::int64_t chunks, all_chunks;
  std::int64_t bound;  ///< images of one head in a wave
  std::int64_t carry;  ///< states between waves, each of 64 columns

  explicit Waves(const KdaCall& call) : all_heads(call.problem.value_heads) {
    const std::int64_t tokens = call.args.q.size(1);
    const std::int64_t count = call.count;
    all_chunks = (tokens + chunk_tokens - 1) / chunk_tokens;
    const std::int64_t all =
        call.batch != nullptr ? max_tiles(tokens, count, chunk_tokens) : count * all_chunks;
    heads = std::min(all_heads,
                     std::max<std::int64_t>(1, most_images / std::max<std::int64_t>(1, all)));
    chunks = all_chunks;
    bound = all;
    const std::int64_t enough = std::min(
        all_heads, std::max<std::int64_t>(1, enough_states / std::max<std::int64_t>(1, count)));
    if (heads < enough || heads * all > most_images) {
      heads = enough;
      chunks = std::max<std::int64_t>(1, most_images / (count * heads));
      bound = std::min(all, count * chunks);
    }
    const std::int64_t parts =
        (call.problem.value_dim + KdaChunkShape::columns - 1) / KdaChunkShape::columns;
    carry = chunks < all_chunks ? count * heads * parts : 0;
  }
  std::size_t base_bytes(std::int64_t count) const {
    return DeviceWorkspace::aligned(static_cast<std::size_t>(count + 1) * sizeof(std::int32_t));
  }
  std::size_t image_count() const { return static_cast<std::size_t>(bound * heads); }
  std::size_t carry_floats() const {
    return static_cast<std::size_t>(carry) * KdaChunkShape::columns * KdaChunkShape::keys;
  }
  std::size_t bytes(std::int64_t count) const {
    return base_bytes(count) + DeviceWorkspace::aligned(image_count() * sizeof(KdaImage)) +
           DeviceWorkspace::aligned(carry_floats() * sizeof(float));
  }
};

std::shared_ptr<const Plan> plan(const KdaCall& call, int) {
  const auto result = std::make_shared<KdaPlan>();
  plan_kda(call, *result);
  result->workspace_bytes += Waves(call).bytes(call.count);
  return result;
}

/// Warpgroups of a block: two share what a chunk's tensors cost to bring, one fills more
/// multiprocessors.
int groups_of(const KdaCall& call, std::int64_t heads) {
  const KdaProblem& p = call.problem;
  if (p.value_dim <= KdaChunkShape::columns) return 1;
  const std::int64_t states = call.count * heads * ((p.value_dim + 127) / 128);
  return 2 * states > properties(p.device.index).multiprocessors ? 2 : 1;
}

void run(const KdaCall& call, const Plan& base, const RunContext& context) {
  const auto& planned = static_cast<const KdaPlan&>(base);
  const DeviceGuard guard(call.problem.device);
  const cudaStream_t stream = stream_of(context);
  raise_earlier_fault(call.problem.device.index, stream);
  const Waves waves(call);
  DeviceWorkspace workspace(context, kda_prelude_bytes(call, planned) + waves.bytes(call.count));
  const KdaParams params = kda_prelude(call, planned, workspace, stream);
  KdaWave wave{};
  wave.bases = workspace.take<std::int32_t>(static_cast<std::size_t>(call.count) + 1);
  wave.images = workspace.take<KdaImage>(waves.image_count());
  if (waves.carry > 0) wave.carry = workspace.take<float>(waves.carry_floats());
  wave.bound = waves.bound;
  wave.count = static_cast<std::int32_t>(waves.chunks);
  for (std::int64_t head = 0; head < waves.all_heads; head += waves.heads) {
    wave.first_head = static_cast<std::int32_t>(head);
    wave.heads = static_cast<std::int32_t>(std::min(waves.heads, waves.all_heads - head));
    // Without tokens there is one wave all the same: it clears gaps and passes states on.
    for (std::int64_t chunk = 0; chunk == 0 || chunk < waves.all_chunks; chunk += waves.chunks) {
      wave.first = static_cast<std::int32_t>(chunk);
      launch_kda_wave(params, wave, stream);
      launch_kda_prepare(params, wave, stream);
      launch_kda_scan(params, wave, groups_of(call, wave.heads), stream);
      if (waves.chunks == 0) break;
    }
  }
}

}  // namespace

KdaImplementation kda_chunk() {
  return {.name = name, .decline = decline, .plan = plan, .run = run, .on_host = false};
}

}  // namespace packattn::cuda::sm90
