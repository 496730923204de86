// SPDX-License-Identifier: Apache-2.0
// Softmax attention over three packed sequences; then the same call with two mistakes in it.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <packattn/packattn.h>

using packattn::TensorView;

namespace {

/// Any values will do: waves of a different length for every tensor.
std::vector<float> wave(std::int64_t count, float step) {
  std::vector<float> values(static_cast<std::size_t>(count));
  float angle = 0;
  for (float& value : values) value = std::sin(angle += step);
  return values;
}

}  // namespace

int main() {
  constexpr std::int64_t heads = 8, kv_heads = 2, dim = 64;
  const std::vector<std::int32_t> cu_q = {0, 5, 12, 15};  // three sequences of 5, 7, 3 queries
  const std::vector<std::int32_t> cu_k = {0, 9, 21, 25};  // and 9, 12, 4 keys

  std::vector<float> q = wave(15 * heads * dim, 0.7F);
  std::vector<float> k = wave(25 * kv_heads * dim, 1.1F);
  std::vector<float> v = wave(25 * kv_heads * dim, 1.3F);
  std::vector<float> out(q.size());
  std::vector<float> lse(15 * heads);

  // The boundaries are checked once; every layer of a model reuses the batch.
  const auto batch =
      packattn::PackedBatch::from_cu_seqlens(TensorView::of(cu_q), TensorView::of(cu_k));
  packattn::AttentionArgs args{.q = TensorView::of(q.data(), {15, heads, dim}),
                               .k = TensorView::of(k.data(), {25, kv_heads, dim}),
                               .v = TensorView::of(v.data(), {25, kv_heads, dim}),
                               .out = TensorView::of(out.data(), {15, heads, dim}),
                               .lse = TensorView::of(lse.data(), {heads, 15})};
  packattn::attention(args, batch, {.causal = true});
  std::printf("out[0,0,:3] = %.4f %.4f %.4f, lse[0,0] = %.4f\n\n", double{out[0]}, double{out[1]},
              double{out[2]}, double{lse[0]});

  // One k length lost, and k in half precision: one refusal lists everything that is wrong.
  const std::vector<std::int32_t> cu_k_short = {0, 9, 21};
  std::vector<packattn::Half> k_half(k.size());
  args.k = TensorView::of(k_half.data(), {25, kv_heads, dim});
  try {
    packattn::attention(
        args, {.cu_seqlens_q = TensorView::of(cu_q), .cu_seqlens_k = TensorView::of(cu_k_short)});
  } catch (const packattn::Error& error) {
    std::printf("%s\n", error.what());
    return error.faults().size() >= 2 ? 0 : 1;
  }
  return 1;  // a call with two mistakes must not run
}
