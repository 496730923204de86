// SPDX-License-Identifier: Apache-2.0
// Kimi Delta Attention over two packed sequences, continued by one token with the states carried;
// then the mistake of handing in a padded batch together with boundaries.
#include <cstdint>
#include <cstdio>
#include <vector>

#include <packattn/packattn.h>

using packattn::TensorView;

namespace {

constexpr std::int64_t heads = 2, key_dim = 64, value_dim = 128;

/// q, k, v, g, beta and out of one call, for `tokens` tokens in each of `rows` batch rows.
struct Tokens {
  Tokens(std::int64_t row_count, std::int64_t token_count) : rows(row_count), tokens(token_count) {
    const auto per_head = static_cast<std::size_t>(rows * tokens * heads);
    q.assign(per_head * key_dim, 0.125F);
    k = q;  // of norm 1, so that beta is the share of the old value that is replaced
    g.assign(per_head * key_dim, -0.05F);
    v.assign(per_head * value_dim, 1.0F);
    beta.assign(per_head, 0.5F);
    out.assign(per_head * value_dim, 0.0F);
  }

  packattn::KdaArgs args(std::vector<float>& states) {
    return {.q = TensorView::of(q.data(), {rows, tokens, heads, key_dim}),
            .k = TensorView::of(k.data(), {rows, tokens, heads, key_dim}),
            .v = TensorView::of(v.data(), {rows, tokens, heads, value_dim}),
            .g = TensorView::of(g.data(), {rows, tokens, heads, key_dim}),
            .beta = TensorView::of(beta.data(), {rows, tokens, heads}),
            .out = TensorView::of(out.data(), {rows, tokens, heads, value_dim}),
            .state = TensorView::of(states.data(), {2, heads, key_dim, value_dim})};
  }

  std::int64_t rows, tokens;
  std::vector<float> q, k, v, g, beta, out;
};

}  // namespace

int main() {
  const packattn::KdaOptions options{.state_layout = packattn::StateLayout::k_first};
  std::vector<float> states(2 * heads * key_dim * value_dim);  // zeros; updated in place

  Tokens prompt(1, 8);  // sequences of 3 and 5 tokens
  const std::vector<std::int64_t> prompt_lengths = {3, 5};
  packattn::kda_recurrent(prompt.args(states), packattn::PackedBatch::from_lengths(prompt_lengths),
                          options);

  Tokens next(1, 2);  // one more token for each
  const std::vector<std::int64_t> one_each = {1, 1};
  packattn::kda_recurrent(next.args(states), packattn::PackedBatch::from_lengths(one_each),
                          options);
  std::printf("next token of sequence 0: %.4f, of sequence 1: %.4f\n\n", double{next.out[0]},
              double{next.out[heads * value_dim]});

  Tokens padded(2, 5);  // two rows of 5, although boundaries say where sequences end
  try {
    packattn::kda_recurrent(padded.args(states),
                            packattn::PackedBatch::from_lengths(prompt_lengths), options);
  } catch (const packattn::Error& error) {
    std::printf("%s\n", error.what());
    return 0;
  }
  return 1;  // a padded batch with boundaries must not run
}
