// SPDX-License-Identifier: Apache-2.0
// Layers, pack, unpack and merge_states on a device, held against the host: equal to the reference
// to rounding, copies bit for bit, no byte around an output written, inputs unchanged.
#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "packattn/packattn.h"

#include "support/boundaries.h"
#include "support/compare.h"
#include "support/device_memory.h"
#include "support/guarded.h"
#include "support/random.h"

namespace packattn::test {
namespace {

/// The device implementation of a layer, if this build and machine have one.
std::string device_name(Op layer) {
  for (const std::string& name : implementations(layer)) {
    if (runs_on_device(name)) return name;
  }
  return {};
}

bool has_device() {
  Guarded x(DType::f32, {1, 8});
  Guarded out(DType::f32, {1, 8});
  const std::string name = device_name(Op::l2norm);
  if (name.empty()) return false;
  for (const Verdict& v :
       why_l2norm({.x = x.view_as_if_on_device(), .out = out.view_as_if_on_device()})) {
    if (v.implementation == name) return !v.declined;
  }
  return false;
}

Guarded noise(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed,
              Form form = Form::contiguous) {
  Guarded x(dtype, std::move(shape), form);
  Random random(seed);
  for (std::int64_t i = 0; i < x.numel(); ++i) x.set(i, random.normal());
  x.freeze();
  return x;
}

double limit(DType out) { return out == DType::f32 ? 3e-7 : out == DType::f16 ? 4e-4 : 2.5e-3; }

/// Runs `call` with views of the tensors on the host and on the device; the outputs agree.
class BothSides {
 public:
  BothSides(std::vector<Guarded*> inputs, std::vector<Guarded*> outputs)
      : inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}

  using Views = std::vector<TensorView>;  ///< inputs, then outputs
  void run(const std::function<void(const Views&, bool on_device)>& call, bool exact = false) {
    reset();
    call(views([](Guarded& x) { return x.view(); }), false);
    std::vector<std::vector<float>> expected;
    for (Guarded* out : outputs_) {
      expected.push_back(out->present() ? out->values() : std::vector<float>{});
    }
    reset();
    call(views([](Guarded& x) { return x.send(); }), true);
    for (Guarded* x : inputs_) x->fetch();
    for (Guarded* x : outputs_) x->fetch();
    for (Guarded* x : inputs_) {
      EXPECT_TRUE(!x->present() || x->unchanged());
    }
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      Guarded& out = *outputs_[i];
      if (!out.present()) continue;
      EXPECT_EQ(out.damaged(), 0) << "output " << i;
      const std::vector<double> wanted(expected[i].begin(), expected[i].end());
      if (exact) {
        EXPECT_TRUE(same_bits(out.values(), expected[i], out.shape())) << "output " << i;
      } else {
        EXPECT_TRUE(close(out.values(), wanted, out.shape(), {limit(out.dtype())})) << i;
      }
    }
  }

 private:
  template <class F>
  Views views(F&& f) {
    Views all;
    for (Guarded* x : inputs_) all.push_back(f(*x));
    for (Guarded* x : outputs_) all.push_back(f(*x));
    return all;
  }
  void reset() {
    for (const auto& side : {inputs_, outputs_}) {
      for (Guarded* x : side) {
        if (x->present()) x->restore();
      }
    }
  }
  std::vector<Guarded*> inputs_, outputs_;
};

Context context(Op layer, bool on_device) {
  std::string name = on_device ? device_name(layer) : implementations(layer).back();
  return {.implementation = std::move(name)};
}

class DeviceLayers : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no CUDA device here";
  }
};

TEST_F(DeviceLayers, L2Norm) {
  for (const std::int64_t D : {1, 3, 64, 100, 1025}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const Form form : {Form::contiguous, Form::wide, Form::heads_first, Form::odd_base}) {
        Guarded x = noise(dtype, {2, 3, D}, 1, form), out(dtype, {2, 3, D}, form);
        out.freeze();
        BothSides({&x}, {&out}).run([](const BothSides::Views& t, bool device) {
          l2norm({.x = t[0], .out = t[1]}, {}, context(Op::l2norm, device));
        });
      }
    }
  }
}

TEST_F(DeviceLayers, GatedRmsNorm) {
  for (int mask = 0; mask < 32; ++mask) {
    const DType dtype = mask % 3 == 0 ? DType::bf16 : mask % 3 == 1 ? DType::f32 : DType::f16;
    const Form form = mask % 2 == 0 ? Form::contiguous : Form::wide;
    const std::int64_t T = 7, D = mask % 5 == 0 ? 1500 : 40;
    const auto use = [&](int bit, Guarded x) {
      return (mask >> bit & 1) != 0 ? std::move(x) : Guarded();
    };
    Guarded x = noise(dtype, {T, D}, 1, form), gate = use(0, noise(DType::f32, {T, D}, 2, form));
    Guarded weight = use(1, noise(DType::f32, {D}, 3)), bias = use(2, noise(dtype, {D}, 4));
    Guarded residual = use(3, noise(DType::f32, {T, D}, 5, form));
    Guarded out(dtype, {T, D}, form), sum = use(4, Guarded(DType::f32, {T, D}, form));
    out.freeze();
    sum.freeze();
    BothSides({&x, &gate, &weight, &bias, &residual}, {&out, &sum})
        .run([&](const BothSides::Views& t, bool device) {
          gated_rms_norm(
              {.x = t[0],
               .gate = t[1],
               .weight = t[2],
               .bias = t[3],
               .residual = t[4],
               .out = t[5],
               .residual_out = t[6]},
              {.activation = mask % 2 == 0 ? GateActivation::swish : GateActivation::sigmoid},
              context(Op::gated_rms_norm, device));
        });
  }
}

TEST_F(DeviceLayers, KdaGate) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const GateKind kind : {GateKind::softplus, GateKind::bounded}) {
      Guarded g = noise(dtype, {2, 5, 3, 21}, 1, Form::wide), A_log = noise(DType::f32, {3}, 2);
      Guarded bias = noise(DType::f32, {3, 21}, 3, Form::wide), out(DType::f32, {2, 5, 3, 21});
      out.freeze();
      BothSides({&g, &A_log, &bias}, {&out}).run([&](const BothSides::Views& t, bool device) {
        kda_gate({.g = t[0], .A_log = t[1], .dt_bias = t[2], .out = t[3]}, {.gate = kind},
                 context(Op::kda_gate, device));
      });
    }
  }
}

enum class Window { none, in_place, separate, slots };

TEST_F(DeviceLayers, ShortConvolution) {
  const std::vector<std::int64_t> lengths{5, 0, 1, 130, 2};
  const std::int64_t T = 138, D = 300, N = 5, spare = 4;
  for (const std::int64_t W : {1, 2, 4, 7}) {
    for (const Window window : {Window::none, Window::in_place, Window::separate, Window::slots}) {
      for (const bool on_device_only : {false, true}) {
        const DType dtype = W == 4 ? DType::bf16 : DType::f32;
        const bool stored = window != Window::none && W > 1;
        const std::int64_t rows = window == Window::slots ? 9 : N;
        Guarded x = noise(dtype, {T + spare, D}, 1, Form::wide),
                weight = noise(DType::f32, {D, W}, 2);
        Guarded bias = noise(DType::f32, {D}, 3), out(dtype, {T + spare, D}, Form::wide);
        Guarded state = stored ? noise(DType::f32, {rows, D, W - 1}, 4) : Guarded();
        Guarded final = stored && window == Window::separate ? Guarded(DType::f32, {rows, D, W - 1})
                                                             : Guarded();
        Guarded slots = integers(DType::i32, {3, 8, -1, 0, 5});
        Guarded cu = integers(DType::i64, running_ends(lengths));
        for (Guarded* t : {&out, &final, &slots, &cu}) t->freeze();
        Guarded unused;
        Guarded& read_only = window == Window::separate ? state : unused;
        Guarded& written = window == Window::separate ? unused : state;
        BothSides({&x, &weight, &bias, &slots, &cu, &read_only}, {&out, &written, &final})
            .run([&](const BothSides::Views& t, bool device) {
              ShortConvolutionArgs args{.x = t[0],
                                        .weight = t[1],
                                        .bias = t[2],
                                        .out = t[6],
                                        .state = t[7],
                                        .initial_state = t[5],
                                        .final_state = t[8]};
              if (window == Window::slots && stored) args.slots = t[3];
              const TensorView boundaries = device && on_device_only ? t[4] : cu.view();
              short_convolution(args, BatchSpec{.cu_seqlens_q = boundaries, .capacity = true},
                                {.silu = W % 2 == 0}, context(Op::short_convolution, device));
            });
      }
    }
  }
}

TEST_F(DeviceLayers, PackAndUnpack) {
  const std::vector<std::int64_t> lengths{3, 0, 7, 1};
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8, DType::i64}) {
    for (const Form form : {Form::contiguous, Form::wide, Form::heads_first, Form::odd_base}) {
      for (const bool mask : {false, true}) {
        constexpr std::int64_t width = 9;  // of padding_mask, too
        Guarded padded(dtype, {4, width, 2, 24}, form), packed(dtype, {11, 2, 24}, form);
        for (Guarded* x : {&padded, &packed}) {
          for (std::int64_t i = 0; i < x->numel(); ++i) {
            if (dtype == DType::i64) x->set_integer(i, i * 1000003);
            else x->set(i, static_cast<double>(i % 97));
          }
          x->freeze();
        }
        Guarded cu = integers(DType::i32, running_ends(lengths));
        Guarded masks = padding_mask(lengths);
        for (Guarded* x : {&cu, &masks}) x->freeze();
        for (const bool on_device_only : {false, true}) {
          if (mask && on_device_only) continue;  // a mask is read on the host
          const auto batch = [&](const TensorView& there) {
            return mask ? PackedBatch::from_padding_mask(masks.view())
                        : PackedBatch::from_cu_seqlens(on_device_only ? there : cu.view());
          };
          BothSides({&padded, &cu}, {&packed})
              .run([&](const BothSides::Views& t,
                       bool device) { pack(t[0], batch(device ? t[1] : cu.view()), t[2]); },
                   true);
          BothSides({&packed, &cu}, {&padded})
              .run([&](const BothSides::Views& t,
                       bool device) { unpack(t[0], batch(device ? t[1] : cu.view()), t[2]); },
                   true);
        }
      }
    }
  }
}

TEST_F(DeviceLayers, MergeStates) {
  const std::int64_t T = 9, H = 3, D = 40;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const bool in_place : {false, true}) {
      Guarded a = noise(dtype, {T, H, D}, 1, Form::wide), b = noise(dtype, {T, H, D}, 2);
      Guarded lse_a = noise(DType::f32, {H, T}, 3), lse_b = noise(DType::f32, {H, T}, 4);
      const double none = -std::numeric_limits<double>::infinity();
      lse_a.set(3, none), lse_b.set(3, none), lse_a.set(4, none), lse_b.set(5, none);
      for (Guarded* x : {&lse_a, &lse_b}) x->freeze();
      Guarded out(dtype, {T, H, D}), lse(DType::f32, {H, T}), unused;
      out.freeze();
      lse.freeze();
      Guarded &own = in_place ? unused : a, &own_lse = in_place ? unused : lse_a;
      BothSides({&own, &own_lse, &b, &lse_b}, {in_place ? &a : &out, in_place ? &lse_a : &lse})
          .run([&](const BothSides::Views& t, bool) {
            merge_states({.out_a = in_place ? t[4] : t[0],
                          .lse_a = in_place ? t[5] : t[1],
                          .out_b = t[2],
                          .lse_b = t[3],
                          .out = t[4],
                          .lse = t[5]});
          });
    }
  }
}

}  // namespace
}  // namespace packattn::test
