// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include <fmt/format.h>

namespace packattn::cli {
namespace {

/// A view that is never dereferenced: every call gives another aligned address, far from all
/// others.
TensorView imaginary(DType dtype, Device device, const std::vector<std::int64_t>& shape) {
  static std::uintptr_t next = std::uintptr_t{1} << 58;
  next += std::uintptr_t{1} << 50;
  return {std::bit_cast<void*>(next), dtype, device, shape};
}

std::vector<std::int64_t> shape_of(const TensorView& tensor) {
  std::vector<std::int64_t> shape;
  for (int dim = 0; dim < std::min(tensor.rank(), TensorView::max_rank); ++dim) {
    shape.push_back(tensor.size(dim));
  }
  return shape;
}

// Faults of the inputs are the caller's; an output made to fit them must not add its own.
std::vector<std::int64_t> out_shape(const TensorView& q, const TensorView& v, int heads_of_v) {
  std::vector<std::int64_t> shape = shape_of(heads_of_v != 0 ? v : q);
  if (!shape.empty() && v.rank() > 0 && v.rank() <= TensorView::max_rank) shape.back() = v.size(-1);
  return shape;
}

std::int64_t sequences_of(const Call& call) {
  if (!call.has_batch) return call.kda.q.rank() == 4 ? call.kda.q.size(0) : 0;
  return check_batch(call.spec).empty() ? PackedBatch(call.spec).size() : 0;
}

std::vector<std::int64_t> state_shape(const Call& call, std::int64_t count) {
  const KdaArgs& args = call.kda;
  if (args.initial_state.present()) return shape_of(args.initial_state);
  if (args.q.rank() != 4 || args.v.rank() != 4) return {count};
  const std::int64_t K = args.q.size(3);
  const std::int64_t V = args.v.size(3);
  if (call.kda_options.state_layout == StateLayout::v_first) return {count, args.v.size(2), V, K};
  return {count, args.v.size(2), K, V};
}

DType state_dtype(const Call& call) {
  return call.kda.initial_state.present() ? call.kda.initial_state.dtype() : DType::f32;
}

void place_kda_outputs(Call& call, std::map<std::string, TensorView*>& outputs) {
  KdaArgs& args = call.kda;
  const DType dtype = call.fp32_out ? DType::f32 : args.q.dtype();
  args.out = imaginary(dtype, args.q.device(), out_shape(args.q, args.v, 1));
  outputs["out"] = &args.out;
  // A file is mapped read-only; a state to be updated in place needs memory of its own.
  if (args.state.present()) outputs["state"] = &args.state;
  const bool slots = args.slots.present() || args.write_slots.present();
  if (!args.state.present() && !slots && (call.final_state || args.initial_state.present())) {
    args.final_state =
        imaginary(state_dtype(call), args.q.device(), state_shape(call, sequences_of(call)));
    outputs["final_state"] = &args.final_state;
  }
  const std::int64_t chunk = call.kda_options.chunk_size;
  const bool countable = chunk == 16 || chunk == 32 || chunk == 64;  // the check refuses others
  if (call.chunk_states && countable && check_batch(call.spec).empty()) {
    const auto count = kda_chunk_count(PackedBatch(call.spec), chunk);
    args.chunk_states = imaginary(state_dtype(call), args.q.device(), state_shape(call, count));
    outputs["chunk_states"] = &args.chunk_states;
  }
}

}  // namespace

std::string to_string(Op op) {
  switch (op) {
    case Op::attention: return "attention";
    case Op::kda_recurrent: return "kda_recurrent";
    case Op::kda_chunk: break;
  }
  return "kda_chunk";
}

std::map<std::string, TensorView*> place_outputs(Call& call) {
  std::map<std::string, TensorView*> outputs;
  if (!call.q().present()) return outputs;
  if (call.op != Op::attention) {
    place_kda_outputs(call, outputs);
    return outputs;
  }
  AttentionArgs& args = call.attention;
  const DType dtype = call.fp32_out ? DType::f32 : args.q.dtype();
  args.out = imaginary(dtype, args.q.device(), out_shape(args.q, args.v, 0));
  outputs["out"] = &args.out;
  if (call.lse && args.q.rank() == 3) {
    args.lse = imaginary(DType::f32, args.q.device(), {args.q.size(1), args.q.size(0)});
    outputs["lse"] = &args.lse;
  }
  return outputs;
}

std::vector<Fault> check(const Call& call) {
  std::vector<Fault> faults =
      call.op == Op::attention
          ? check_attention(call.attention, call.spec, call.attention_options, call.context)
          : check_kda(call.op, call.kda, call.has_batch ? &call.spec : nullptr, call.kda_options,
                      call.context);
  // The command makes the outputs to fit the inputs. Where those are wrong, the outputs can only be
  // wrong too, and nobody gave them.
  const auto of_output = [](const Fault& fault) {
    const bool output = fault.argument == "out" || fault.argument == "lse" ||
                        fault.argument == "final_state" || fault.argument == "chunk_states";
    return output && static_cast<unsigned>(fault.code) / 1000 == 1;
  };
  if (!std::ranges::all_of(faults, of_output)) std::erase_if(faults, of_output);
  return faults;
}

std::optional<PackedBatch> make_batch(const Call& call) {
  if (call.op != Op::attention && !call.has_batch) return {};
  return PackedBatch(call.spec);
}

std::vector<Verdict> why(const Call& call, const PackedBatch* batch) {
  if (call.op == Op::attention) {
    return why_attention(call.attention, *batch, call.attention_options, call.context);
  }
  return why_kda(call.op, call.kda, batch, call.kda_options, call.context);
}

void run(const Call& call, const PackedBatch* batch) {
  const auto run_kda = [&](auto&& operation) {
    if (batch) operation(call.kda, *batch, call.kda_options, call.context);
    else operation(call.kda, call.kda_options, call.context);
  };
  switch (call.op) {
    case Op::attention:
      attention(call.attention, *batch, call.attention_options, call.context);
      return;
    case Op::kda_recurrent: run_kda([](const auto&... x) { kda_recurrent(x...); }); return;
    case Op::kda_chunk: run_kda([](const auto&... x) { kda_chunk(x...); }); return;
  }
}

std::string describe(const Call& call, const PackedBatch* batch) {
  const TensorView& q = call.q();
  std::string tokens = batch ? fmt::format("{} sequences, {} query and {} key tokens",
                                           batch->size(), batch->rows_q(), batch->rows_k())
                             : fmt::format("{} sequences of {} tokens", q.size(0), q.size(1));
  return fmt::format("{}: {}, q {} {}", to_string(call.op), tokens, q.shape_string(),
                     to_string(q.dtype()));
}

}  // namespace packattn::cli
