// SPDX-License-Identifier: Apache-2.0
#include "ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include <sys/resource.h>

// The targets that the library has kernels for: AVX-512, AVX2, NEON, and Highway's baseline.
#define HWY_DISABLED_TARGETS 0x0FFF9CFFLL

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ceilings.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_ARCH_X86_64 && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace packattn::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Flops done by `rounds` rounds of independent chains, enough of them to hide the latency.
double multiply_add(std::int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int chains = 12;
  V sum[chains];
  for (int i = 0; i < chains; ++i) sum[i] = hn::Set(d, static_cast<float>(i));
  const V a = hn::Set(d, sink[0]), b = hn::Set(d, sink[1]);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (V& s : sum) s = hn::MulAdd(s, a, b);
  }
  V total = hn::Zero(d);
  for (const V& s : sum) total = hn::Add(total, s);
  sink[2] = hn::GetLane(total);
  return 2.0 * chains * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

/// Reads `streams` equal stretches of memory side by side; the result is only there to be needed.
float read(const float* from, std::int64_t count, int streams) {
  const hn::ScalableTag<float> d;
  const auto step = static_cast<std::int64_t>(4 * hn::Lanes(d));
  const std::int64_t stretch = count / streams;
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (std::int64_t i = 0; i + step <= stretch; i += step) {
    for (int s = 0; s < streams; ++s) {
      const float* at = from + s * stretch + i;
      const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
      a = hn::Or(a, hn::LoadU(d, at));
      b = hn::Or(b, hn::LoadU(d, at + lanes));
      c = hn::Or(c, hn::LoadU(d, at + 2 * lanes));
      e = hn::Or(e, hn::LoadU(d, at + 3 * lanes));
    }
  }
  return hn::GetLane(hn::Or(hn::Or(a, b), hn::Or(c, e)));
}

}  // namespace packattn::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace packattn::bench {
namespace {

double seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

double best_rate(double (*kernel)(std::int64_t, float*)) {
  float values[3] = {0.999F, 0.001F, 0};
  double best = 0;
  for (int i = 0; i < 300; ++i) {  // short, so that some are not interrupted
    const double start = seconds();
    const double flops = kernel(100'000, values);
    best = std::max(best, flops / (seconds() - start) / 1e9);
  }
  return best;
}

/// Wall time of one call on each of `threads` threads.
double seconds_of(int threads, const std::function<void(std::size_t)>& work) {
  const double start = seconds();
  std::vector<std::thread> workers;
  workers.reserve(static_cast<std::size_t>(threads));
  for (int t = 0; t < threads; ++t) workers.emplace_back(work, static_cast<std::size_t>(t));
  for (std::thread& worker : workers) worker.join();
  return seconds() - start;
}

auto read_best() {
#if HWY_TARGETS & HWY_AVX3
  if (hwy::SupportedTargets() & HWY_AVX3) return N_AVX3::read;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (hwy::SupportedTargets() & HWY_AVX2) return N_AVX2::read;
#endif
  return HWY_STATIC_DISPATCH(read);
}

#if HWY_ARCH_X86_64 && defined(__linux__)

bool may_use_tiles() {
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
  return __builtin_cpu_supports("amx-bf16") &&
         syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

/// Flops of products of whole tiles of bf16, four sums at a time.
__attribute__((target("amx-tile,amx-bf16"))) double multiply_tiles(std::int64_t rounds, float*) {
  struct alignas(64) Shape {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static const Shape shape;
  _tile_loadconfig(&shape);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (std::int64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4.0 * 2 * 16 * 16 * 32 * static_cast<double>(rounds);
}

/// The same with products of bf16 pairs.
__attribute__((target("avx512f,avx512bf16"))) double multiply_add_bf16(std::int64_t rounds,
                                                                       float* sink) {
  constexpr int chains = 12;
  __m512 sum[chains];
  for (int i = 0; i < chains; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  const auto a = (__m512bh)_mm512_set1_ps(sink[0]), b = (__m512bh)_mm512_set1_ps(sink[1]);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (__m512& s : sum) s = _mm512_dpbf16_ps(s, a, b);
  }
  __m512 total = _mm512_setzero_ps();
  for (const __m512& s : sum) total = _mm512_add_ps(total, s);
  sink[2] = _mm512_cvtss_f32(total);
  return 4.0 * chains * 16 * static_cast<double>(rounds);
}
#endif

}  // namespace

std::vector<FmaPeak> measure_fma_peaks() {
  std::vector<FmaPeak> peaks;
#if HWY_ARCH_X86_64 && defined(__linux__)
  if (may_use_tiles()) peaks.push_back({"amx_bf16", best_rate(multiply_tiles)});
  if (__builtin_cpu_supports("avx512bf16")) {
    peaks.push_back({"avx512_bf16", best_rate(multiply_add_bf16)});
  }
#endif
#if HWY_TARGETS & HWY_AVX3
  if (hwy::SupportedTargets() & HWY_AVX3)
    peaks.push_back({"avx512", best_rate(N_AVX3::multiply_add)});
#endif
#if HWY_TARGETS & HWY_AVX2
  if (hwy::SupportedTargets() & HWY_AVX2)
    peaks.push_back({"avx2", best_rate(N_AVX2::multiply_add)});
#endif
#if HWY_TARGETS & HWY_NEON
  if (hwy::SupportedTargets() & HWY_NEON)
    peaks.push_back({"neon", best_rate(N_NEON::multiply_add)});
#endif
  return peaks;
}

double measure_copy(int threads) {
  constexpr std::size_t bytes = std::size_t{256} << 20;
  const auto share = bytes / static_cast<std::size_t>(threads);
  const std::unique_ptr<char[]> from(new char[bytes]), to(new char[bytes]);
  std::memset(from.get(), 1, bytes);
  std::memset(to.get(), 2, bytes);
  const auto copy = [&](std::size_t t) {
    std::memcpy(to.get() + share * t, from.get() + share * t, share);
  };
  double best = 0;
  for (int i = 0; i < 8; ++i) {
    best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds_of(threads, copy) / 1e9);
  }
  return best;
}

double measure_read(int threads) {
  constexpr std::size_t count = std::size_t{64} << 20;
  const std::size_t share = count / static_cast<std::size_t>(threads);
  const std::unique_ptr<float[]> from(new float[count]);
  std::fill_n(from.get(), count, 1.0F);
  std::atomic<float> sink{0};
  double best = 0;
  for (int i = 0; i < 12; ++i) {
    const int streams = 1 << i % 3;  // which is best depends on the machine
    const auto read = [&](std::size_t t) {
      sink = read_best()(from.get() + share * t, static_cast<std::int64_t>(share), streams);
    };
    const auto bytes = static_cast<double>(count * sizeof(float));
    best = std::max(best, bytes / seconds_of(threads, read) / 1e9);
  }
  return best;
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto in_seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return in_seconds(usage.ru_utime) + in_seconds(usage.ru_stime);
}

std::size_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace packattn::bench
#endif
