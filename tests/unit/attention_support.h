// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "packattn/attention.h"

#include "core/half.h"

// A softmax call with memory of its own.

namespace packattn::test {

/// A contiguous tensor of one of the three floating-point types.
class FloatTensor {
 public:
  FloatTensor() = default;
  FloatTensor(DType dtype, const std::vector<std::int64_t>& shape) : dtype_(dtype), shape_(shape) {
    std::size_t count = 1;
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    bytes_.resize(count * size_of(dtype) + 1);  // never null
  }
  std::size_t size() const { return (bytes_.size() - 1) / size_of(dtype_); }
  float get(std::size_t i) const {
    return with_float_type(
        dtype_, [&]<class T>(T) { return load(reinterpret_cast<const T*>(bytes_.data())[i]); });
  }
  void set(std::size_t i, float x) {
    with_float_type(dtype_,
                    [&]<class T>(T) { reinterpret_cast<T*>(bytes_.data())[i] = store<T>(x); });
  }
  void fill(const std::function<float()>& next) {
    for (std::size_t i = 0; i < size(); ++i) set(i, next());
  }
  TensorView view() { return {bytes_.data(), dtype_, Device{}, shape_}; }
  /// Rows [begin, begin + rows) as a view.
  TensorView rows(std::int64_t begin, std::int64_t rows) {
    const TensorView all = view();
    std::vector<std::int64_t> shape = shape_, strides;
    shape[0] = rows;
    for (int i = 0; i < all.rank(); ++i) strides.push_back(all.stride(i));
    return {bytes_.data() + begin * all.stride(0) * static_cast<std::int64_t>(size_of(dtype_)),
            dtype_, Device{}, shape, strides};
  }
  bool operator==(const FloatTensor& other) const { return bytes_ == other.bytes_; }

 private:
  DType dtype_ = DType::f32;
  std::vector<std::int64_t> shape_;
  std::vector<std::byte> bytes_;
};

/// Sizes and options; everything else follows from them and the seed.
struct AttentionSetup {
  std::vector<std::int64_t> lengths_q, lengths_k;
  std::int64_t heads_q = 2, heads_k = 1, head_dim = 64, value_dim = 64;
  DType dtype = DType::f32;
  AttentionOptions options = {};
  bool alibi = false, sinks = false;
  std::int64_t page_size = 0;  ///< 0: packed keys
  bool f32_out = false;
  unsigned seed = 1;
};

struct AttentionResult {
  FloatTensor out, lse;
  bool operator==(const AttentionResult&) const = default;
};

class AttentionInputs {
 public:
  explicit AttentionInputs(const AttentionSetup& wanted) : setup(wanted) {
    std::mt19937 random(setup.seed);
    std::normal_distribution<float> normal;
    const auto next = [&] { return normal(random); };
    tokens_q = sum(setup.lengths_q);
    std::int64_t rows_k = sum(setup.lengths_k), pages = 1;
    if (setup.page_size > 0) {
      std::int64_t width = 1;
      for (const std::int64_t n : setup.lengths_k) {
        width = std::max(width, (n + setup.page_size - 1) / setup.page_size);
      }
      // Pages go out back to front, so that nobody finds the right rows by accident.
      pages = width * std::ssize(setup.lengths_k);
      table.resize(static_cast<std::size_t>(pages));
      for (std::int64_t i = 0; i < pages; ++i) {
        table[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(pages - 1 - i);
      }
      table_width = width;
    }
    const auto keys_shape = [&](std::int64_t dim) -> std::vector<std::int64_t> {
      if (setup.page_size > 0) return {pages, setup.page_size, setup.heads_k, dim};
      return {rows_k, setup.heads_k, dim};
    };
    q = FloatTensor(setup.dtype, {tokens_q, setup.heads_q, setup.head_dim});
    k = FloatTensor(setup.dtype, keys_shape(setup.head_dim));
    v = FloatTensor(setup.dtype, keys_shape(setup.value_dim));
    slopes = FloatTensor(DType::f32, {setup.heads_q});
    sinks = FloatTensor(DType::f32, {setup.heads_q});
    for (FloatTensor* tensor : {&q, &k, &v, &slopes, &sinks}) tensor->fill(next);
    for (std::size_t i = 0; i < slopes.size(); ++i) slopes.set(i, std::abs(slopes.get(i)));
  }

  PackedBatch batch() {
    if (setup.page_size == 0) return PackedBatch::from_lengths(setup.lengths_q, setup.lengths_k);
    ends = {0};
    for (const std::int64_t n : setup.lengths_q) ends.push_back(ends.back() + n);
    const auto n = std::ssize(setup.lengths_k);
    return PackedBatch::paged(TensorView::of(ends), TensorView::of(setup.lengths_k),
                              TensorView::of(table.data(), {n, table_width}));
  }

  AttentionResult run(const std::string& implementation, int threads = 1) {
    AttentionResult result{FloatTensor(setup.f32_out ? DType::f32 : setup.dtype,
                                       {tokens_q, setup.heads_q, setup.value_dim}),
                           FloatTensor(DType::f32, {setup.heads_q, tokens_q})};
    result.out.fill([] { return NAN; });
    result.lse.fill([] { return NAN; });
    AttentionOptions options = setup.options;
    if (setup.alibi) options.alibi_slopes = slopes.view();
    if (setup.sinks) options.sinks = sinks.view();
    attention({q.view(), k.view(), v.view(), result.out.view(), result.lse.view()}, batch(),
              options, {.threads = threads, .implementation = implementation});
    return result;
  }

  AttentionSetup setup;
  std::int64_t tokens_q = 0, table_width = 0;
  FloatTensor q, k, v, slopes, sinks;
  std::vector<std::int32_t> table;
  std::vector<std::int64_t> ends;

 private:
  static std::int64_t sum(const std::vector<std::int64_t>& values) {
    std::int64_t total = 0;
    for (const std::int64_t value : values) total += value;
    return total;
  }
};

/// Names of the vector implementations that this processor runs, for some type at least.
inline std::vector<std::string> vector_implementations() {
  std::vector<std::string> names;
  for (const std::string& name : implementations(Op::attention)) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      AttentionInputs inputs({.lengths_q = {1}, .lengths_k = {1}, .dtype = dtype});
      AttentionResult out = inputs.run("ref/attention");
      const AttentionArgs args{inputs.q.view(), inputs.k.view(), inputs.v.view(), out.out.view()};
      const auto runs = [&](const Verdict& v) { return v.implementation == name && !v.declined; };
      const std::vector<Verdict> verdicts = why_attention(args, inputs.batch());
      if (name.starts_with("cpu/") && std::any_of(verdicts.begin(), verdicts.end(), runs)) {
        names.push_back(name);
        break;
      }
    }
  }
  return names;
}

/// |a - b| / |b| in the 2-norm; NaN if either has one.
inline double relative_error(const FloatTensor& a, const FloatTensor& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a.get(i), y = b.get(i);
    if (x == y) {  // also infinities
      norm += std::isfinite(y) ? y * y : 0;
      continue;
    }
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace packattn::test
