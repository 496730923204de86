// SPDX-License-Identifier: Apache-2.0
// Softmax attention as docs/mathematics.md states it: one row at a time, fp64 throughout,
// every option. This is what all other implementations are compared with.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/half.h"
#include "ref/ref.h"

namespace packattn::ref {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Key rows of one sequence, wherever they lie: packed, or in the pages of a cache.
template <class T>
class KeyRows {
 public:
  KeyRows(const TensorView& tensor, const AttentionCall& call, std::int64_t n, std::int64_t head)
      : base_(tensor.as<const T>() + head * tensor.stride(-2)),
        row_stride_(tensor.stride(-3)),
        page_stride_(tensor.stride(0)),
        page_size_(call.problem.page_size),
        start_(call.batch.sequences()[static_cast<std::size_t>(n)].k_start) {
    if (call.problem.paged) pages_ = call.batch.block_table(n);
  }
  const T* operator[](std::int64_t j) const {
    if (pages_.empty()) return base_ + (start_ + j) * row_stride_;
    const std::int64_t page = pages_[static_cast<std::size_t>(j / page_size_)];
    return base_ + page * page_stride_ + j % page_size_ * row_stride_;
  }

 private:
  const T* base_;
  std::int64_t row_stride_, page_stride_, page_size_, start_;
  std::span<const std::int32_t> pages_;
};

template <class T>
double dot(const T* a, const T* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t d = 0; d < n; ++d) sum += double{load(a[d])} * double{load(b[d])};
  return sum;
}

/// All query rows of sequence n for query head h.
template <class T, class Out>
void attend(const AttentionCall& call, std::int64_t n, std::int64_t h) {
  const auto& [args, options, problem, batch] = call;
  const Sequence s = batch.sequences()[static_cast<std::size_t>(n)];
  const KeyRows<T> k(args.k, call, n, h / problem.group());
  const KeyRows<T> v(args.v, call, n, h / problem.group());
  const TensorView& slopes = options.alibi_slopes;
  const std::int64_t slope_row = slopes.rank() == 2 ? n * slopes.stride(0) : 0;
  const double slope =
      problem.alibi ? slopes.as<const float>()[slope_row + h * slopes.stride(-1)] : 0;

  std::vector<double> x, o(static_cast<std::size_t>(problem.value_dim));
  for (std::int64_t i = 0; i < s.q_length; ++i) {
    const std::int64_t row = s.q_start + i;
    const T* q = args.q.as<const T>() + row * args.q.stride(0) + h * args.q.stride(1);
    const KeyRange keys = problem.mask.visible(s, i);

    x.clear();
    const double sink =
        problem.sinks ? options.sinks.as<const float>()[h * options.sinks.stride(0)] : -infinity;
    double m = sink;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      double score = problem.scale * dot(q, k[j], problem.head_dim);
      if (problem.softcap > 0) score = problem.softcap * std::tanh(score / problem.softcap);
      if (problem.alibi) score -= slope * std::abs(double(i + problem.mask.shift(s) - j));
      x.push_back(score);
      m = std::max(m, score);
    }

    double sum = sink > -infinity ? std::exp(sink - m) : 0;
    std::fill(o.begin(), o.end(), 0.0);
    for (std::size_t j = 0; j < x.size(); ++j) {
      const double p = std::exp(x[j] - m);
      const T* value = v[keys.begin + static_cast<std::int64_t>(j)];
      sum += p;
      for (std::size_t d = 0; d < o.size(); ++d) o[d] += p * double{load(value[d])};
    }

    Out* out = args.out.as<Out>() + row * args.out.stride(0) + h * args.out.stride(1);
    for (std::size_t d = 0; d < o.size(); ++d) {
      out[d] = store<Out>(static_cast<float>(x.empty() ? 0 : o[d] / sum));
    }
    if (!problem.lse) continue;
    args.lse.as<float>()[h * args.lse.stride(0) + row * args.lse.stride(1)] =
        static_cast<float>(sum == 0 ? -infinity : m + std::log(sum));
  }
}

void run(const AttentionCall& call, const Plan&, const RunContext& context) {
  const std::int64_t heads = call.problem.heads_q;
  const std::int64_t total = call.batch.size() * heads;
  with_float_type(call.problem.dtype, [&]<class T>(T) {
    const bool same = call.problem.out_dtype == call.problem.dtype;
    for (std::int64_t item = 0; item < total; ++item) {
      if (same) attend<T, T>(call, item / heads, item % heads);
      else attend<T, float>(call, item / heads, item % heads);
      if (context.progress) (*context.progress)(item + 1, total);
    }
  });
}

std::optional<Fault> decline(const AttentionCall&) { return {}; }

std::shared_ptr<const Plan> plan(const AttentionCall&, int) { return std::make_shared<Plan>(); }

}  // namespace

AttentionImplementation attention() { return {"ref/attention", decline, plan, run}; }

}  // namespace packattn::ref
