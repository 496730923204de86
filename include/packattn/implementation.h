// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "packattn/error.h"
#include "packattn/export.h"
#include "packattn/tensor.h"

namespace packattn {

/// How much of a call is looked at before it runs.
enum class CheckLevel {
  host,    ///< every value the host already has
  device,  ///< boundaries on a device are checked there, by the planner, with nothing read back
  full,    ///< all values, KDA gates above 0 too; reads a device's back, so the call waits for it
};

/// How a call runs, as opposed to what it computes: nothing here changes a bit of the result,
/// except the name of an implementation.
struct Context {
  void* stream = nullptr;  ///< a CUstream; ignored on the CPU
  /// CPU threads, at most the larger of 64 and the processors; 0 means all that the work keeps
  /// busy, within `limit_threads`.
  int threads = 0;
  std::string implementation = {};  ///< force this one by name; empty picks the best
  CheckLevel check_level = CheckLevel::host;
  /// Scratch memory on the tensors' device; empty lets the library allocate. The size that an
  /// operation needs is given by its *_workspace_bytes function. 64-byte alignment.
  std::span<std::byte> workspace = {};
  /// Called with finished and total units of work, by the thread that finished one (with one thread
  /// the caller's), at most once at a time.
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
};

/// From now on calls of this process with `Context::threads` 0 take at most so many threads; below
/// 1: as many as the process may use processors. For frameworks that have such a setting of their
/// own.
PACKATTN_EXPORT void limit_threads(int most);

enum class Op {
  attention,
  kda_recurrent,
  kda_chunk,
  kda_gate,
  l2norm,
  short_convolution,
  gated_rms_norm,
};
PACKATTN_EXPORT std::string to_string(Op op);  // "kda_chunk"

/// Names of the implementations of an operation, best first, the fp64 reference last.
PACKATTN_EXPORT std::vector<std::string> implementations(Op op);

/// What one implementation says about one call.
struct Verdict {
  std::string implementation;
  std::optional<Fault> declined;  ///< why not, with a PA3xxx or PA4xxx code; empty means it can
};

/// What kernels on this stream of a CUDA device found wrong with boundaries and slots that only
/// they see, since it was last asked for; the lowest sequence's fault. Waits for nothing, so what
/// has not run yet is not in it. The next call on the stream throws it if nobody has asked.
PACKATTN_EXPORT std::optional<Fault> last_status(Device device, void* stream = nullptr);

/// Faults that tests can provoke. Not for production: the setting is global to the process.
struct Injection {
  bool fail_allocations = false;  ///< every workspace allocation fails: PA5001
  bool hide_simd = false;         ///< the CPU seems to have no vector instructions: PA3006
  bool hide_cuda = false;         ///< the CUDA driver seems absent: PA4xxx
  /// What calls on CUDA tensors meet, on any machine and in any build: cuda_absent,
  /// cuda_unavailable, cuda_failed, capability_low or device_memory.
  std::optional<Code> device_fault = {};
  /// Why everything but the reference declines: head_size_unsupported or dtype_unsupported.
  std::optional<Code> decline = {};
};
/// Replaces what was injected before; `{}` ends it. PA1104 for a code that is not listed above.
PACKATTN_EXPORT void inject_faults(const Injection& injection);

}  // namespace packattn
