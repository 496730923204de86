// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <limits>

#include "fuzz/views.h"
#include "support/scalar.h"

namespace packattn::test::fuzz {
namespace {

// Two mutations may double two dimensions or strides and turn others around. The largest tensors
// of a legal call have 16 KiB, a pool of states 160 KiB.
std::size_t block_bytes(const std::string& name) {
  return std::size_t{1} << (name.find("state") != std::string::npos ? 21 : 18);
}
constexpr std::size_t margin = 1024;  // bytes around an output that are watched

constexpr std::size_t sample_period = 1000;  // and 619 has no factor in common with it

/// What an element of the argument may hold, so that any view of its memory is legal input; what
/// is only written starts as NaN.
double sample(const std::string& name, DType dtype, std::size_t i) {
  const bool real = dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
  if (real && is_output(name) && name != "state") return std::numeric_limits<double>::quiet_NaN();
  const double x = static_cast<double>(i * 619 % sample_period) / sample_period;  // [0, 1)
  if (name == "g") return -x;
  if (name == "beta" || name == "alibi_slopes") return x;
  return 2 * x - 1;
}

struct Range {
  std::int64_t low = 0, high = 0;  // element offsets, both included
};
Range range_of(const TensorView& t) {
  Range range;
  for (int dim = 0; dim < t.rank(); ++dim) {
    const std::int64_t reach = (t.size(dim) - 1) * t.stride(dim);
    (reach < 0 ? range.low : range.high) += reach;
  }
  return range;
}

/// An address like this one, of memory that the host cannot touch.
std::byte* elsewhere(std::byte* data) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(data) | std::uintptr_t{1}
                                                                                   << 60);
}

/// Calls f with the address of every element in row-major order.
template <class F>
void for_each_element(const TensorView& t, F&& f) {
  const std::int64_t count = t.numel();
  const auto bytes = static_cast<std::int64_t>(size_of(t.dtype()));
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, at = 0;
    for (int dim = t.rank() - 1; dim >= 0; --dim) {
      at += rest % t.size(dim) * t.stride(dim);
      rest /= t.size(dim);
    }
    f(t.as<std::byte>() + at * bytes);
  }
}

/// An output's surroundings before the call.
struct Watched {
  std::string name;
  TensorView view;
  std::byte* begin;
  std::vector<std::byte> before;

  Watched(std::string argument, const TensorView& t, const std::vector<std::byte>& block)
      : name(std::move(argument)), view(t) {
    const Range range = range_of(t);
    const auto bytes = static_cast<std::int64_t>(size_of(t.dtype()));
    const auto slack = static_cast<std::int64_t>(margin);
    begin = t.as<std::byte>() + range.low * bytes - slack;
    std::byte* end = t.as<std::byte>() + (range.high + 1) * bytes + slack;
    auto* first = const_cast<std::byte*>(block.data());
    begin = std::clamp(begin, first, first + block.size());
    end = std::clamp(end, begin, first + block.size());
    before.assign(begin, end);
  }
  bool changed() const { return !std::equal(before.begin(), before.end(), begin); }
  bool foreign_changed() const {
    std::vector<std::byte> now(begin, begin + before.size());
    std::vector<std::byte> then = before;
    for_each_element(view, [&](const std::byte* at) {
      std::memset(now.data() + (at - begin), 0, size_of(view.dtype()));
      std::memset(then.data() + (at - begin), 0, size_of(view.dtype()));
    });
    return now != then;
  }
};

}  // namespace

Bench::Bench() : workspace_(std::size_t{1} << 22) {}

std::vector<std::byte>& Bench::block(const std::string& name, DType dtype) {
  std::vector<std::byte>& bytes = blocks_[{name, dtype}];
  if (!bytes.empty()) return bytes;
  const std::size_t size = std::max<std::size_t>(1, size_of(dtype));
  std::vector<std::byte> period(sample_period * size);
  for (std::size_t i = 0; i < sample_period; ++i) {
    encode(dtype, period.data() + i * size, sample(name, dtype, i));
  }
  bytes.resize(block_bytes(name));
  for (std::size_t at = 0; at < bytes.size(); at += period.size()) {
    std::copy_n(period.begin(), std::min(period.size(), bytes.size() - at),
                bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return bytes;
}

TensorView Bench::view_of(const Call& call, const std::string& name) {
  const Tensor& t = call.tensors.at(name);
  auto& bytes = block(t.alias.empty() ? name : t.alias, t.dtype);
  std::byte* data = t.null ? nullptr : bytes.data() + bytes.size() / 2 + t.byte_offset;
  if (!t.device.is_host() && !t.null) data = elsewhere(data);
  return {data, t.dtype, t.device, t.shape, t.strides, t.read_only};
}

TensorView Bench::view_of_integers(const Call& call, const std::string& name) {
  const Integers& t = call.integers.at(name);
  const std::size_t size = std::max<std::size_t>(1, size_of(t.dtype));
  // Slack, because a mutated shape may say more than the values.
  auto& bytes = integers_[name];
  bytes.assign((t.values.size() + 256) * 8, std::byte{0});
  for (std::size_t i = 0; i < t.values.size(); ++i) {
    const std::int64_t value = t.values[i];
    if (t.dtype == DType::i32 || t.dtype == DType::i64) {
      std::memcpy(bytes.data() + i * size, &value, size);
    } else {
      encode(t.dtype, bytes.data() + i * size, static_cast<double>(value));
    }
  }
  const std::vector<std::int64_t> flat{static_cast<std::int64_t>(t.values.size())};
  std::byte* data = t.null ? nullptr : bytes.data();
  if (!t.device.is_host() && !t.null) data = elsewhere(data);
  return {data, t.dtype, t.device, t.shape.empty() ? flat : t.shape};
}

Views Bench::lay_out(const Call& call) {
  Views views;
  for (const auto& [name, tensor] : call.tensors) views.by_name[name] = view_of(call, name);
  for (const auto& [name, values] : call.integers) {
    views.by_name[name] = view_of_integers(call, name);
  }
  return views;
}

void Bench::invoke(const Call& call, const Views& v) {
  const BatchSpec spec{.cu_seqlens_q = v["cu_seqlens_q"],
                       .cu_seqlens_k = v["cu_seqlens_k"],
                       .host_q = v["host_q"],
                       .host_k = v["host_k"],
                       .lengths_q = v["lengths_q"],
                       .lengths_k = v["lengths_k"],
                       .starts_q = v["starts_q"],
                       .starts_k = v["starts_k"],
                       .seqlens_k = v["seqlens_k"],
                       .block_table = v["block_table"],
                       .padding_mask_q = v["padding_mask_q"],
                       .padding_mask_k = v["padding_mask_k"],
                       .position_ids = v["position_ids"],
                       .max_seqlen_q = call.max_seqlen_q,
                       .max_seqlen_k = call.max_seqlen_k,
                       .capacity = call.capacity};
  Context context{
      .threads = call.threads, .implementation = call.implementation, .check_level = call.level};
  auto* memory = workspace_.data() + 64 - reinterpret_cast<std::uintptr_t>(workspace_.data()) % 64;
  if (call.workspace == Call::Workspace::small) context.workspace = {memory, 1};
  if (call.workspace == Call::Workspace::misaligned) context.workspace = {memory + 8, 1 << 20};
  AttentionOptions options = call.attention;
  options.alibi_slopes = v["alibi_slopes"];
  options.sinks = v["sinks"];
  const AttentionArgs softmax{
      .q = v["q"], .k = v["k"], .v = v["v"], .out = v["out"], .lse = v["lse"]};
  const KdaArgs kda{.q = v["q"],
                    .k = v["k"],
                    .v = v["v"],
                    .g = v["g"],
                    .beta = v["beta"],
                    .out = v["out"],
                    .A_log = v["A_log"],
                    .dt_bias = v["dt_bias"],
                    .state = v["state"],
                    .initial_state = v["initial_state"],
                    .final_state = v["final_state"],
                    .slots = v["slots"],
                    .read_slots = v["read_slots"],
                    .write_slots = v["write_slots"],
                    .num_accepted_tokens = v["num_accepted_tokens"],
                    .chunk_states = v["chunk_states"]};
  const MergeArgs merge{.out_a = v["out_a"],
                        .lse_a = v["lse_a"],
                        .out_b = v["out_b"],
                        .lse_b = v["lse_b"],
                        .out = v["out"],
                        .lse = v["lse"]};
  const Op op = call.kind == Kind::kda_chunk ? Op::kda_chunk : Op::kda_recurrent;
  if (call.absurd) {
    std::vector<Fault> faults;
    if (call.kind == Kind::attention) faults = check_attention(softmax, spec, options, context);
    if (call.is_kda()) {
      faults = check_kda(op, kda, call.boundaries ? &spec : nullptr, call.kda, context);
    }
    if (call.kind == Kind::merge) faults = check_merge_states(merge);
    if (call.is_layer()) faults = check_layer(call, v, spec, context);
    if (!faults.empty()) throw Error(std::move(faults));
    return;
  }
  switch (call.kind) {
    case Kind::attention: return attention(softmax, spec, options, context);
    case Kind::kda_recurrent:
      return call.boundaries ? kda_recurrent(kda, spec, call.kda, context)
                             : kda_recurrent(kda, call.kda, context);
    case Kind::kda_chunk:
      return call.boundaries ? kda_chunk(kda, spec, call.kda, context)
                             : kda_chunk(kda, call.kda, context);
    case Kind::merge: return merge_states(merge, context);
    case Kind::pack: return pack(v["padded"], PackedBatch(spec), v["packed"], call.side);
    case Kind::unpack: return unpack(v["packed"], PackedBatch(spec), v["padded"], call.side);
    default: return run_layer(call, v, spec, context);
  }
}

Bench::Outcome Bench::run(const Call& call) {
  const Views views = lay_out(call);
  std::vector<Watched> watched;
  for (const auto& [name, tensor] : call.tensors) {
    const bool packing = (call.kind == Kind::pack && name == "packed") ||
                         (call.kind == Kind::unpack && name == "padded");
    if ((!is_output(name) && !packing) || tensor.null || call.absurd) continue;
    if (!tensor.device.is_host()) continue;
    const bool negative = std::any_of(tensor.shape.begin(), tensor.shape.end(),
                                      [](std::int64_t size) { return size < 0; });
    if (negative || tensor.shape.size() > TensorView::max_rank) continue;
    watched.emplace_back(name, views[name],
                         block(tensor.alias.empty() ? name : tensor.alias, tensor.dtype));
  }
  Outcome outcome;
  inject_faults(call.injection);
  try {
    invoke(call, views);
  } catch (const Error& error) {
    outcome.faults = error.faults();
  }
  inject_faults({.hide_cuda = true});
  // An output in an empty one's memory is legal, and foreign to it.
  const bool shared = std::any_of(call.tensors.begin(), call.tensors.end(),
                                  [](const auto& entry) { return !entry.second.alias.empty(); });
  for (const Watched& w : watched) {
    if (!outcome.faults.empty()) {
      outcome.wrote_after_refusal |= w.changed();
    } else {
      outcome.touched_foreign_bytes |= !shared && w.foreign_changed();
      auto& values = outcome.outputs[w.name];
      for_each_element(w.view, [&](const std::byte* at) {
        values.push_back(static_cast<float>(decode(w.view.dtype(), at)));
      });
    }
  }
  for (const Watched& w : watched) std::copy(w.before.begin(), w.before.end(), w.begin);
  return outcome;
}

}  // namespace packattn::test::fuzz
