// SPDX-License-Identifier: Apache-2.0
// The accuracy of every KDA implementation that runs here against the fp64 reference on the same
// inputs: relative norm errors of output and final state, as a Markdown table.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "packattn/packattn.h"

namespace {

using namespace packattn;

constexpr std::int64_t H = 2, K = 128, V = 128;

struct Inputs { std::vector<float> q, k, v, g, beta, initial; };

struct Case {
  std::string name;
  std::int64_t tokens;
  std::function<void(Inputs&, std::mt19937&)> change;  ///< of random inputs with gates in [-1, 0]
  DType dtype = DType::f32;
};

float normal(std::mt19937& random) { return std::normal_distribution<float>()(random); }

Inputs random_inputs(std::int64_t T, std::mt19937& random) {
  Inputs x;
  const auto fill = [&](std::vector<float>& to, std::int64_t count, auto&& f) {
    to.resize(static_cast<std::size_t>(count));
    for (float& value : to) value = f();
  };
  std::uniform_real_distribution<float> uniform;
  fill(x.q, T * H * K, [&] { return normal(random); });
  fill(x.k, T * H * K, [&] { return normal(random); });
  fill(x.v, T * H * V, [&] { return normal(random); });
  fill(x.g, T * H * K, [&] { return -uniform(random); });
  fill(x.beta, T * H, [&] { return uniform(random); });
  fill(x.initial, H * K * V, [&] { return normal(random); });
  return x;
}

std::function<void(Inputs&, std::mt19937&)> gates(const std::function<float(std::mt19937&)>& f) {
  return [f](Inputs& x, std::mt19937& random) {
    for (float& g : x.g) g = f(random);
  };
}

std::vector<Case> cases() {
  const auto constant = [](float g) { return gates([g](std::mt19937&) { return g; }); };
  const auto same_keys = [](float g, float spread) {
    return [g, spread](Inputs& x, std::mt19937& random) {
      for (std::size_t i = 0; i < x.k.size(); ++i) {
        x.k[i] = (i % 2 == 0 ? 1.0F : -1.0F) + spread * normal(random);
      }
      for (float& b : x.beta) b = 1;
      for (float& gate : x.g) gate = g * (1 + std::abs(normal(random)));
    };
  };
  return {
      {"random, gates -1..0", 4096, {}},
      {"random, gates -1..0", 4096, {}, DType::bf16},
      {"random, gates -1..0", 4096, {}, DType::f16},
      {"gates -0.03..0", 16384, gates([](auto& r) { return -0.03F * std::abs(normal(r)); })},
      {"gates -0.03..0", 16384, gates([](auto& r) { return -0.03F * std::abs(normal(r)); }),
       DType::bf16},
      {"gate 0", 16384, constant(0)},
      {"gate -0.0007", 16384, constant(-0.0007F)},
      {"gate -0.3", 4096, constant(-0.3F)},
      {"gate -2", 4096, constant(-2)},
      {"gate -6", 4096, constant(-6)},
      {"gate -1000 at one place in 50", 4096,
       gates([](auto& r) { return r() % 50 == 0 ? -1000.0F : -0.01F; })},
      {"gate -1000 at one place in 50", 4096,
       gates([](auto& r) { return r() % 50 == 0 ? -1000.0F : -0.01F; }), DType::bf16},
      {"identical keys, beta 1, gate 0", 4096, same_keys(0, 0)},
      {"near-identical keys, beta 1", 4096, same_keys(-0.01F, 0.05F)},
      {"near-identical keys, beta 1", 4096, same_keys(-0.01F, 0.05F), DType::bf16},
      {"small betas, gate 0", 16384,
       [](Inputs& x, std::mt19937&) {
         for (float& b : x.beta) b *= 1e-3F;
         for (float& g : x.g) g = 0;
       }},
  };
}

/// Memory of one tensor in its own type, and back as doubles.
struct Tensor {
  std::vector<std::byte> bytes;
  DType dtype;

  Tensor(const std::vector<float>& values, DType type)
      : bytes(values.size() * size_of(type)), dtype(type) {
    for (std::size_t i = 0; i < values.size(); ++i) write(i, values[i]);
  }
  // Truncation is enough: every implementation reads the same numbers.
  void write(std::size_t i, float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    auto* half = reinterpret_cast<std::uint16_t*>(bytes.data()) + i;
    if (dtype == DType::f32) std::memcpy(bytes.data() + 4 * i, &x, 4);
    else if (dtype == DType::bf16) *half = static_cast<std::uint16_t>(bits >> 16);
    else if (std::abs(x) < 6.2e-5F) *half = 0;
    else
      *half = static_cast<std::uint16_t>((bits >> 16 & 0x8000U) |
                                         (((bits >> 13) - 0x1c000U) & 0x7fffU));
  }
  double read(std::size_t i) const {
    if (dtype == DType::f32) return reinterpret_cast<const float*>(bytes.data())[i];
    const std::uint32_t half = reinterpret_cast<const std::uint16_t*>(bytes.data())[i];
    if (dtype == DType::bf16) return std::bit_cast<float>(half << 16);
    const double magnitude = (half & 0x7fffU) >= 0x400U
                                 ? std::bit_cast<float>(((half & 0x7fffU) + 0x1c000U) << 13)
                                 : (half & 0x3ffU) * 0x1p-24;
    return (half & 0x8000U) != 0 ? -magnitude : magnitude;
  }
  TensorView view(std::vector<std::int64_t> shape) {
    return {bytes.data(), dtype, Device{}, shape};
  }
};

struct Result { Tensor out, state; };

Result run(Op op, const Case& c, const Inputs& x, StateLayout layout,
           const std::string& implementation, bool exact_out) {
  const std::int64_t T = c.tokens;
  Tensor q(x.q, c.dtype), k(x.k, c.dtype), v(x.v, c.dtype), g(x.g, DType::f32);
  Tensor beta(x.beta, DType::f32), initial(x.initial, DType::f32);
  Result result{Tensor(x.v, exact_out ? DType::f32 : c.dtype), Tensor(x.initial, DType::f32)};
  const KdaArgs args{.q = q.view({1, T, H, K}),
                     .k = k.view({1, T, H, K}),
                     .v = v.view({1, T, H, V}),
                     .g = g.view({1, T, H, K}),
                     .beta = beta.view({1, T, H}),
                     .out = result.out.view({1, T, H, V}),
                     .initial_state = initial.view({1, H, K, V}),
                     .final_state = result.state.view({1, H, K, V})};
  const KdaOptions options{.l2norm = true, .state_layout = layout};
  const Context context{.implementation = implementation};
  if (op == Op::kda_chunk) kda_chunk(args, options, context);
  else kda_recurrent(args, options, context);
  return result;
}

double relative_error(const Tensor& x, const Tensor& y, std::size_t count) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < count; ++i) {
    difference += (x.read(i) - y.read(i)) * (x.read(i) - y.read(i));
    norm += y.read(i) * y.read(i);
  }
  return std::sqrt(difference / norm);
}

/// One row of the table; nothing if the implementation is not for this processor.
void compare(Op op, const Case& c, const Inputs& x, StateLayout layout, const std::string& name,
             const Result& exact) {
  try {
    const Result result = run(op, c, x, layout, name, false);
    std::printf("| %s | %s | %s | %lld | %s | %.1e | %.1e |\n", name.c_str(),
                layout == StateLayout::k_first ? "k_first" : "v_first", c.name.c_str(),
                static_cast<long long>(c.tokens), to_string(c.dtype).c_str(),
                relative_error(result.out, exact.out, x.v.size()),
                relative_error(result.state, exact.state, x.initial.size()));
  } catch (const Error& error) {
    if (error.code() != Code::implementation_declined) throw;
  }
}

}  // namespace

int main() {
  std::printf("| implementation | layout | case | T | dtype | output | final state |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Case& c : cases()) {
    std::mt19937 random(7);
    Inputs x = random_inputs(c.tokens, random);
    if (c.change) c.change(x, random);
    for (const StateLayout layout : {StateLayout::k_first, StateLayout::v_first}) {
      const Result exact = run(Op::kda_recurrent, c, x, layout, "ref/kda_recurrent", true);
      for (const Op op : {Op::kda_recurrent, Op::kda_chunk}) {
        for (const std::string& name : implementations(op)) {
          if (name.starts_with("cpu/")) compare(op, c, x, layout, name, exact);
        }
      }
    }
  }
}
