// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

namespace packattn::cli {

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

std::int64_t sequences_of(const Call& call) {
  if (!call.has_batch) return call.input().rank() == 4 ? call.input().size(0) : 0;
  return check_batch(call.spec).empty() ? PackedBatch(call.spec).size() : 0;
}

namespace {

// Faults of the inputs are the caller's; an output made to fit them must not add its own.
std::vector<std::int64_t> out_shape(const TensorView& q, const TensorView& v, int heads_of_v) {
  std::vector<std::int64_t> shape = shape_of(heads_of_v != 0 ? v : q);
  if (!shape.empty() && v.rank() > 0 && v.rank() <= TensorView::max_rank) shape.back() = v.size(-1);
  return shape;
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

const TensorView& Call::input() const {
  switch (op) {
    case Op::attention: return attention.q;
    case Op::kda_recurrent:
    case Op::kda_chunk: return kda.q;
    case Op::kda_gate: return gate.g;
    case Op::l2norm: return l2norm.x;
    case Op::short_convolution: return convolution.x;
    case Op::gated_rms_norm: break;
  }
  return rms_norm.x;
}

const char* Call::input_name() const {
  if (!is_layer(op)) return "q";
  return op == Op::kda_gate ? "g" : "x";
}

TensorView* Call::state() {
  if (is_kda()) return &kda.state;
  return op == Op::short_convolution ? &convolution.state : nullptr;
}

std::map<std::string, TensorView*> place_outputs(Call& call) {
  std::map<std::string, TensorView*> outputs;
  if (!call.input().present()) return outputs;
  if (is_layer(call.op)) return place_layer_outputs(call);
  if (call.is_kda()) {
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
      is_layer(call.op) ? check_layer(call)
      : call.op == Op::attention
          ? check_attention(call.attention, call.spec, call.attention_options, call.context)
          : check_kda(call.op, call.kda, call.has_batch ? &call.spec : nullptr, call.kda_options,
                      call.context);
  // The command makes the outputs to fit the inputs. Where those are wrong, the outputs can only be
  // wrong too, and nobody gave them.
  const auto of_output = [](const Fault& fault) {
    static constexpr std::string_view made[] = {"out", "lse", "final_state", "chunk_states",
                                                "residual_out"};
    const bool output = std::ranges::find(made, fault.argument) != std::end(made);
    return output && static_cast<unsigned>(fault.code) / 1000 == 1;
  };
  if (!std::ranges::all_of(faults, of_output)) std::erase_if(faults, of_output);
  return faults;
}

std::optional<PackedBatch> make_batch(const Call& call) {
  const bool needed = call.op == Op::attention || call.op == Op::short_convolution;
  if (needed || (call.is_kda() && call.has_batch)) return PackedBatch(call.spec);
  return {};
}

std::vector<Verdict> why(const Call& call, const PackedBatch* batch) {
  if (is_layer(call.op)) return why_layer(call, batch);
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
    default: run_layer(call, batch);
  }
}

std::string describe(const Call& call, const PackedBatch* batch) {
  const TensorView& input = call.input();
  std::string rows;
  if (batch && call.op == Op::short_convolution) {
    rows = fmt::format("{} sequences, {} tokens, ", batch->size(), batch->rows_q());
  } else if (batch) {
    rows = fmt::format("{} sequences, {} query and {} key tokens, ", batch->size(), batch->rows_q(),
                       batch->rows_k());
  } else if (call.is_kda()) {
    rows = fmt::format("{} sequences of {} tokens, ", input.size(0), input.size(1));
  }
  return fmt::format("{}: {}{} {} {}", to_string(call.op), rows, call.input_name(),
                     input.shape_string(), to_string(input.dtype()));
}

}  // namespace packattn::cli
