// SPDX-License-Identifier: Apache-2.0
#include "batch.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/reflection/registry.h>

#include "faults.h"

namespace packattn::python {

BatchSpec read_spec(CallReader& call) {
  BatchSpec spec;
  spec.cu_seqlens_q = call.tensor("cu_seqlens_q");
  spec.cu_seqlens_k = call.tensor("cu_seqlens_k");
  spec.host_q = call.tensor("host_q");
  spec.host_k = call.tensor("host_k");
  spec.lengths_q = call.tensor("lengths_q");
  spec.lengths_k = call.tensor("lengths_k");
  spec.starts_q = call.tensor("starts_q");
  spec.starts_k = call.tensor("starts_k");
  spec.seqlens_k = call.tensor("seqlens_k");
  spec.block_table = call.tensor("block_table");
  spec.padding_mask_q = call.tensor("padding_mask_q");
  spec.padding_mask_k = call.tensor("padding_mask_k");
  spec.position_ids = call.tensor("position_ids");
  spec.max_seqlen_q = call.optional_integer("max_seqlen_q");
  spec.max_seqlen_k = call.optional_integer("max_seqlen_k");
  spec.capacity = call.flag("capacity");
  return spec;
}

BatchArgument read_batch(CallReader& call) {
  if (call.done()) return {};
  auto ahead = call;
  const auto first = ahead.any();
  if (const auto* object = first.as<BatchObject>()) {
    call.any();
    return {.batch = &object->batch};
  }
  return {.spec = read_spec(call)};
}

namespace {

using Progress = std::function<void(std::int64_t, std::int64_t)>;

// Python only notes that Ctrl-C was pressed; somebody has to ask. The calling thread works too, so
// it asks between two of its units of work: before a callback, which could not say what a signal
// handler has raised on its way in, and else at most 20 times a second.
void raise_if_interrupted() {
  if (TVMFFIEnvCheckSignals() != 0) throw ffi::EnvErrorAlreadySet();
}

void raise_if_interrupted_lately() {
  using std::chrono::steady_clock;
  static thread_local steady_clock::time_point asked;
  const auto now = steady_clock::now();
  if (now - asked < std::chrono::milliseconds(50)) return;
  asked = now;
  raise_if_interrupted();
}

Progress interruptible(Progress told) {
  const auto caller = std::this_thread::get_id();
  if (!told) {
    return [caller](std::int64_t, std::int64_t) {
      if (std::this_thread::get_id() == caller) raise_if_interrupted_lately();
    };
  }
  return [caller, told = std::move(told)](std::int64_t done, std::int64_t total) {
    if (std::this_thread::get_id() == caller) raise_if_interrupted();
    told(done, total);
  };
}

/// The current stream of a device, as the framework that made the tensors has it.
void* stream_of(Device device) {
  return TVMFFIEnvGetStream(static_cast<std::int32_t>(device.type), device.index);
}

}  // namespace

Context read_context(CallReader& call, const TensorView& like) {
  Context context;
  context.implementation = call.string("implementation");
  context.threads =
      static_cast<int>(std::clamp<std::int64_t>(call.integer("threads"), INT32_MIN, INT32_MAX));
  context.check_level =
      static_cast<CheckLevel>(call.choice("check_level", "'host', 'device' or 'full'"));
  const auto workspace = call.tensor("workspace");
  if (workspace.present()) {
    const auto bytes = static_cast<std::size_t>(workspace.numel()) * size_of(workspace.dtype());
    context.workspace = {workspace.as<std::byte>(), bytes};
  }
  context.progress = call.callback("progress");
  if (!like.device().is_host()) {
    context.stream = stream_of(like.device());
  } else {
    context.progress = interruptible(std::move(context.progress));
  }
  return context;
}

namespace {

ffi::Any make_batch(ffi::PackedArgs args) {
  return guarded([&]() -> ffi::Any {
    CallReader call(args);
    const auto spec = read_spec(call);
    if (!call.clean()) return refusal(call.refusing_faults(check_batch(spec)));
    return ffi::ObjectRef(ffi::make_object<BatchObject>(PackedBatch(spec)));
  });
}

ffi::Any check_batch_call(ffi::PackedArgs args) {
  CallReader call(args);
  const auto spec = read_spec(call);
  return refusal(call.faults_and(check_batch(spec)));
}

const PackedBatch& batch_of(const ffi::AnyView& value) { return value.as<BatchObject>()->batch; }

// [size, rows_q, rows_k, max_seqlen_q, max_seqlen_k, then four flags]
ffi::Array<std::int64_t> describe(ffi::AnyView value) {
  const auto& b = batch_of(value);
  return {b.size(),       b.rows_q(),   b.rows_k(),   b.max_seqlen_q(),     b.max_seqlen_k(),
          b.host_known(), b.capacity(), b.is_paged(), b.shares_boundaries()};
}

// Fills an int64 tensor [N, 4]: q_start, q_length, k_start, k_length.
void sequences(ffi::AnyView value, ffi::TensorView rows) {
  auto* to = static_cast<std::int64_t*>(rows.data_ptr());
  for (const auto& s : batch_of(value).sequences()) {
    for (const auto number : {s.q_start, s.q_length, s.k_start, s.k_length}) *to++ = number;
  }
}

ffi::Array<std::int64_t> actual_seq_lengths(ffi::AnyView value, bool keys) {
  const auto& b = batch_of(value);
  const auto ends = keys ? b.actual_seq_lengths_kv() : b.actual_seq_lengths_q();
  return ffi::Array<std::int64_t>(ends.begin(), ends.end());
}

ffi::Array<std::int64_t> block_table_row(ffi::AnyView value, std::int64_t sequence) {
  const auto pages = batch_of(value).block_table(sequence);
  ffi::Array<std::int64_t> row;
  for (const auto page : pages) row.push_back(page);
  return row;
}

template <class Copy>
ffi::Any copy_call(ffi::PackedArgs args, const char* from, const char* to, Copy copy) {
  return guarded([&]() -> ffi::Any {
    CallReader call(args);
    call.faults();
    const auto source = call.tensor(from);
    const auto target = call.tensor(to);
    const auto side = static_cast<Side>(call.choice("side", "'query' or 'key'"));
    const auto batch = read_batch(call);
    if (!call.clean()) return refusal(call.refusing_faults({}));
    Context context;
    if (!source.device().is_host()) context.stream = stream_of(source.device());
    copy(source, *batch.batch, target, side, context);
    return nullptr;
  });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<BatchObject>();
  refl::GlobalDef()
      .def_packed("packattn.make_batch",
                  [](ffi::PackedArgs args, ffi::Any* result) { *result = make_batch(args); })
      .def_packed("packattn.check_batch",
                  [](ffi::PackedArgs args, ffi::Any* result) { *result = check_batch_call(args); })
      .def("packattn.describe_batch", describe)
      .def("packattn.sequences", sequences)
      .def("packattn.actual_seq_lengths", actual_seq_lengths)
      .def("packattn.block_table_row", block_table_row)
      .def_packed("packattn.pack",
                  [](ffi::PackedArgs args, ffi::Any* result) {
                    *result = copy_call(args, "padded", "packed", pack);
                  })
      .def_packed("packattn.unpack", [](ffi::PackedArgs args, ffi::Any* result) {
        *result = copy_call(args, "packed", "padded", unpack);
      });
}

}  // namespace packattn::python
