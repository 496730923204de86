// SPDX-License-Identifier: Apache-2.0
// The columns of a KDA item between the caller's tensors, in either layout, and blocks of fp32. One
// copy per Highway target.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "core/half.h"
#include "core/kda_problem.h"
#include "cpu/kda_schedule.h"
#include "cpu/simd_math-inl.h"

#if defined(PACKATTN_CPU_KDA_STATE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_KDA_STATE_INL_H
#undef PACKATTN_CPU_KDA_STATE_INL_H
#else
#define PACKATTN_CPU_KDA_STATE_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Columns [first, first + count) of one head's state in one row of a state tensor.
struct KdaStateColumns {
  const TensorView& states;
  StateLayout layout;
  std::int64_t row, head, first, count;

  std::int64_t offset() const { return row * states.stride(0) + head * states.stride(1); }
};

/// A vector whose 128-bit parts come from, or go to, rows that are `stride` elements apart.
template <class D, class T>
HWY_INLINE hn::Vec<D> gather_parts(D d, const T* from, std::int64_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return load_floats(d, from);
  } else {
    const hn::Half<D> half;
    constexpr std::int64_t rows = hn::MaxLanes(half);
    return hn::Combine(d, gather_parts(half, from + rows * stride, stride),
                       gather_parts(half, from, stride));
  }
}
template <class D, class T>
HWY_INLINE void scatter_parts(D d, hn::Vec<D> x, T* to, std::int64_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    store_floats(d, x, to);
  } else {
    const hn::Half<D> half;
    constexpr std::int64_t rows = hn::MaxLanes(half);
    scatter_parts(half, hn::LowerHalf(half, x), to, stride);
    scatter_parts(half, hn::UpperHalf(half, x), to + rows * stride, stride);
  }
}

/// Transposes the 4x4 matrices that lie in the 128-bit parts of four vectors; its own inverse.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void transpose_parts(D d, V (&x)[4]) {
  const hn::Repartition<std::uint64_t, D> wide;
  const auto w = [&](V v) HWY_ATTR { return hn::BitCast(wide, v); };
  const V low01 = hn::InterleaveLower(d, x[0], x[1]), high01 = hn::InterleaveUpper(d, x[0], x[1]);
  const V low23 = hn::InterleaveLower(d, x[2], x[3]), high23 = hn::InterleaveUpper(d, x[2], x[3]);
  x[0] = hn::BitCast(d, hn::InterleaveLower(wide, w(low01), w(low23)));
  x[1] = hn::BitCast(d, hn::InterleaveUpper(wide, w(low01), w(low23)));
  x[2] = hn::BitCast(d, hn::InterleaveLower(wide, w(high01), w(high23)));
  x[3] = hn::BitCast(d, hn::InterleaveUpper(wide, w(high01), w(high23)));
}

/// Adds the 128-bit parts of a vector; four floats.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void fold_parts(D d, V x, float* to) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(x, d, to);
  } else {
    const hn::Half<D> half;
    fold_parts(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)), to);
  }
}

/// The sums over the lanes of four vectors.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_sums(D d, V x0, V x1, V x2, V x3, float* to) {
  V x[4] = {x0, x1, x2, x3};
  transpose_parts(d, x);
  fold_parts(d, hn::Add(hn::Add(x[0], x[1]), hn::Add(x[2], x[3])), to);
}

/// Reads a byte of every line of some rows, one row after another: the order that the hardware's
/// prefetcher follows. Read as a transposition wants them, a few elements of every row at a time,
/// the rows are too many streams for it, and a decode step took 15 % longer.
template <class T>
void touch_rows(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t j = 0; j < rows; ++j) {
    const auto* row = reinterpret_cast<const volatile std::byte*>(from + j * stride);
    for (std::size_t i = 0; i < static_cast<std::size_t>(columns) * sizeof(T); i += 64) {
      static_cast<void>(row[i]);
    }
  }
}

/// Fills block[d * width + j], with zeros for j >= count.
inline void load_state(const KdaStateColumns& from, std::int64_t K, std::int64_t width,
                       float* block) {
  with_float_type(from.states.dtype(), [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const std::int64_t stride = from.states.stride(2);
    const T* data = from.states.as<T>() + from.offset() +
                    from.first * (from.layout == StateLayout::k_first ? 1 : stride);
    if (from.layout == StateLayout::k_first) {
      for (std::int64_t d = 0; d < K; ++d) {
        widen(data + d * stride, static_cast<std::size_t>(from.count),
              static_cast<std::size_t>(width), block + d * width);
      }
      return;
    }
    const hn::ScalableTag<float> df;
    constexpr std::int64_t lanes = hn::MaxLanes(df);
    if (from.count < width) std::fill_n(block, K * width, 0.0F);
    touch_rows(data, stride, from.count, K);
    for (std::int64_t j = 0; j < from.count; j += lanes) {
      const std::int64_t rows = std::min(lanes, from.count - j);
      std::int64_t d = 0;
      for (; rows == lanes && d + 4 <= K; d += 4) {
        hn::Vec<decltype(df)> x[4];
        for (int r = 0; r < 4; ++r) x[r] = gather_parts(df, data + (j + r) * stride + d, stride);
        transpose_parts(df, x);
        for (int r = 0; r < 4; ++r) hn::StoreU(x[r], df, block + (d + r) * width + j);
      }
      for (; d < K; ++d) {
        for (std::int64_t r = j; r < j + rows; ++r) {
          block[d * width + r] = load(data[r * stride + d]);
        }
      }
    }
  });
}

/// The inverse: the one place where a state is rounded to the caller's type.
inline void store_state(const KdaStateColumns& to, std::int64_t K, std::int64_t width,
                        const float* block) {
  with_float_type(to.states.dtype(), [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const std::int64_t stride = to.states.stride(2);
    T* data = to.states.as<T>() + to.offset() +
              to.first * (to.layout == StateLayout::k_first ? 1 : stride);
    if (to.layout == StateLayout::k_first) {
      for (std::int64_t d = 0; d < K; ++d) {
        narrow(block + d * width, static_cast<std::size_t>(to.count), data + d * stride);
      }
      return;
    }
    const hn::ScalableTag<float> df;
    constexpr std::int64_t lanes = hn::MaxLanes(df);
    for (std::int64_t j = 0; j < to.count; j += lanes) {
      const std::int64_t rows = std::min(lanes, to.count - j);
      std::int64_t d = 0;
      for (; rows == lanes && d + 4 <= K; d += 4) {
        hn::Vec<decltype(df)> x[4];
        for (int r = 0; r < 4; ++r) x[r] = hn::LoadU(df, block + (d + r) * width + j);
        transpose_parts(df, x);
        for (int r = 0; r < 4; ++r) scatter_parts(df, x[r], data + (j + r) * stride + d, stride);
      }
      for (; d < K; ++d) {
        for (std::int64_t r = j; r < j + rows; ++r) {
          data[r * stride + d] = store<T>(block[d * width + r]);
        }
      }
    }
  });
}

/// The columns of an item, as blocks [K][width] one after another: zeros, or the initial state.
inline void load_columns(const KdaCall& call, const KdaItem& item, std::int64_t width,
                         float* state) {
  const KdaProblem& p = call.problem;
  const std::int64_t row = call.sequences[item.sequence].initial;
  for (std::int64_t c = 0; c < item.columns; c += width, state += p.key_dim * width) {
    if (row < 0) std::fill_n(state, p.key_dim * width, 0.0F);
    else
      load_state({call.initial, p.state_layout, row, item.head, item.first_column + c,
                  std::min(width, item.columns - c)},
                 p.key_dim, width, state);
  }
}

/// The inverse, to one row of any state tensor; nothing for row -1.
inline void store_columns(const KdaCall& call, const TensorView& states, std::int64_t row,
                          const KdaItem& item, std::int64_t width, const float* state) {
  const KdaProblem& p = call.problem;
  if (row < 0) return;
  for (std::int64_t c = 0; c < item.columns; c += width, state += p.key_dim * width) {
    store_state({states, p.state_layout, row, item.head, item.first_column + c,
                 std::min(width, item.columns - c)},
                p.key_dim, width, state);
  }
}

/// Output rows of tokens [first, first + count), from rows of `stride` floats.
inline void write_rows(const KdaCall& call, const KdaItem& item, std::int64_t first,
                       std::int64_t count, std::int64_t stride, const float* rows) {
  const TensorView& out = call.args.out;
  const KdaSequence& s = call.sequences[item.sequence];
  with_float_type(out.dtype(), [&](auto type) HWY_ATTR {
    for (std::int64_t t = 0; t < count; ++t) {
      narrow(rows + t * stride, static_cast<std::size_t>(item.columns),
             out.as<decltype(type)>() + s.row * out.stride(0) +
                 (s.start + first + t) * out.stride(1) + item.head * out.stride(2) +
                 item.first_column);
    }
  });
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
