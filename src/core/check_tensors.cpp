// SPDX-License-Identifier: Apache-2.0
#include "core/check_tensors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace packattn {
namespace {

std::string str(std::string_view s) { return std::string(s); }

/// Farther than any memory, and small enough that eight of them in bytes still fit 64 bits.
constexpr std::int64_t far = std::int64_t{1} << 56;

/// Elements from the first index of a dimension to its last; `far` where 64 bits cannot say.
std::int64_t reach(const TensorView& t, int dim) {
  std::int64_t product = 0;
  const bool overflow = __builtin_mul_overflow(t.size(dim) - 1, t.stride(dim), &product);
  if (overflow) return t.stride(dim) < 0 ? -far : far;
  return std::clamp(product, -far, far);
}

/// Bytes [begin, end) that a tensor's elements lie in.
struct Extent {
  std::uintptr_t begin;
  std::uintptr_t end;
};

Extent extent_of(const TensorView& t) {
  const auto base = reinterpret_cast<std::uintptr_t>(t.data());
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (int dim = 0; dim < t.rank(); ++dim) {
    const std::int64_t distance = reach(t, dim);
    (distance < 0 ? low : high) += distance;
  }
  const auto bytes = static_cast<std::int64_t>(size_of(t.dtype()));
  return {base + static_cast<std::uintptr_t>(low * bytes),
          base + static_cast<std::uintptr_t>((high + 1) * bytes)};
}

/// True if some two indices of `t` can name one element: a stride does not clear what the
/// smaller strides cover.
bool overlaps_itself(const TensorView& t) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, reach
  for (int dim = 0; dim < t.rank(); ++dim) {
    const std::int64_t stride = std::clamp(t.stride(dim), -far, far);
    if (t.size(dim) > 1) dims.emplace_back(std::abs(stride), std::abs(reach(t, dim)));
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t covered = 1;
  for (const auto& [stride, distance] : dims) {
    if (stride < covered) return true;
    covered += distance;
  }
  return false;
}

/// Two slices of one buffer, such as k and v of a fused projection, interleave without sharing
/// elements: same row stride, and the columns of one end before those of the other begin.
bool interleave(const TensorView& a, const TensorView& b) {
  if (a.rank() < 2 || b.rank() < 2 || size_of(a.dtype()) != size_of(b.dtype())) return false;
  const std::int64_t row = a.stride(0);
  if (row <= 0 || row > far || row != b.stride(0)) return false;
  const auto columns = [](const TensorView& t) {
    std::int64_t last = 0;
    for (int dim = 1; dim < t.rank(); ++dim) {
      if (t.stride(dim) < 0) return std::int64_t{-1};
      last += reach(t, dim);
    }
    return last + 1;
  };
  const auto bytes = static_cast<std::int64_t>(size_of(a.dtype()));
  std::int64_t offset = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(b.data()) -
                                                  reinterpret_cast<std::uintptr_t>(a.data()));
  if (offset % bytes != 0 || columns(a) < 0 || columns(b) < 0) return false;
  offset = (offset / bytes % row + row) % row;
  return offset >= columns(a) && offset + columns(b) <= row;
}

}  // namespace

std::string number_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

bool is_finite_float(double value) { return std::abs(value) <= std::numeric_limits<float>::max(); }

bool is_zero_or_positive_float(double value) {
  return value == 0 || (value >= std::numeric_limits<float>::min() && is_finite_float(value));
}

std::string dtype_list(std::initializer_list<DType> dtypes) {
  std::string text;
  std::size_t left = dtypes.size();
  for (const DType dtype : dtypes) {
    text += to_string(dtype);
    --left;
    if (left > 0) text += left == 1 ? " or " : ", ";
  }
  return text;
}

bool TensorChecks::given(NamedView t, int rank, std::string_view shape, std::string_view note) {
  if (!t.view.present()) {
    faults_.add(Code::tensor_missing,
                {.argument = str(t.name), .limit = str(shape), .note = str(note)});
    return false;
  }
  if (t.view.rank() != rank) {
    faults_.add(Code::tensor_rank,
                {.argument = str(t.name),
                 .value = std::to_string(t.view.rank()),
                 .limit = fmt::format("{} ({})", rank, shape),
                 .note = note.empty() ? "its shape is " + t.view.shape_string() : str(note)});
    return false;
  }
  for (int dim = 0; dim < rank; ++dim) {
    if (t.view.size(dim) < 0) {
      faults_.add(Code::negative_size, {.argument = str(t.name),
                                        .position = fmt::format("dimension {}", dim),
                                        .value = std::to_string(t.view.size(dim))});
      return false;
    }
  }
  return true;
}

bool TensorChecks::optional(NamedView t, int rank, std::string_view shape) {
  return t.view.present() && given(t, rank, shape);
}

bool TensorChecks::dtype(NamedView t, std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), t.view.dtype()) != allowed.end()) return true;
  faults_.add(
      Code::tensor_dtype,
      {.argument = str(t.name), .value = to_string(t.view.dtype()), .limit = dtype_list(allowed)});
  return false;
}

bool TensorChecks::same_dtype(NamedView t, NamedView as) {
  if (t.view.dtype() == as.view.dtype()) return true;
  faults_.add(Code::tensor_dtype_mismatch, {.argument = str(t.name),
                                            .position = str(as.name),
                                            .value = to_string(t.view.dtype()),
                                            .limit = to_string(as.view.dtype())});
  return false;
}

bool TensorChecks::same_device(NamedView t, NamedView as) {
  const Device a = t.view.device();
  const Device b = as.view.device();
  if (a == b || (a.is_host() && b.is_host())) return true;
  faults_.add(Code::tensor_device, {.argument = str(t.name),
                                    .position = str(as.name),
                                    .value = to_string(a),
                                    .limit = to_string(b)});
  return false;
}

bool TensorChecks::shape(NamedView t, std::initializer_list<std::int64_t> wanted) {
  int dim = 0;
  for (const std::int64_t size : wanted) {
    if (t.view.size(dim++) != size) {
      faults_.add(Code::tensor_shape, {.argument = str(t.name),
                                       .value = t.view.shape_string(),
                                       .limit = fmt::format("[{}]", fmt::join(wanted, ", "))});
      return false;
    }
  }
  return true;
}

bool TensorChecks::addressable(NamedView t) {
  const TensorView& view = t.view;
  if (view.numel() == 0) return true;
  bool fine = true;
  if (view.data() == nullptr) {
    faults_.add(Code::null_data, {.argument = str(t.name), .value = std::to_string(view.numel())});
    fine = false;
  }
  const std::size_t bytes = size_of(view.dtype());
  const auto address = reinterpret_cast<std::uintptr_t>(view.data());
  if (bytes != 0 && address % bytes != 0) {
    faults_.add(Code::misaligned, {.argument = str(t.name),
                                   .value = std::to_string(address % bytes),
                                   .limit = std::to_string(bytes)});
    fine = false;
  }
  return fine;
}

bool TensorChecks::readable(NamedView t) {
  const TensorView& view = t.view;
  if (view.numel() == 0) return true;
  bool fine = addressable(t);
  if (view.rank() > 0 && view.size(-1) > 1 && view.stride(-1) != 1) {
    faults_.add(Code::last_stride,
                {.argument = str(t.name), .value = std::to_string(view.stride(-1)), .limit = "1"});
    fine = false;
  }
  return fine;
}

bool TensorChecks::writable(NamedView t) {
  bool fine = readable(t);
  if (t.view.read_only()) {
    faults_.add(Code::read_only_output, {.argument = str(t.name)});
    fine = false;
  }
  if (t.view.numel() > 0 && overlaps_itself(t.view)) {
    faults_.add(Code::outputs_overlap, {.argument = str(t.name), .value = "itself"});
    fine = false;
  }
  return fine;
}

bool TensorChecks::disjoint(NamedView output, NamedView other) {
  const TensorView& a = output.view;
  const TensorView& b = other.view;
  if (!a.present() || !b.present() || a.numel() == 0 || b.numel() == 0 || a.data() == nullptr ||
      b.data() == nullptr || a.device() != b.device()) {
    return true;
  }
  if (a.rank() > TensorView::max_rank || b.rank() > TensorView::max_rank) return true;  // refused
  const Extent x = extent_of(a);
  const Extent y = extent_of(b);
  if (x.end <= y.begin || y.end <= x.begin || interleave(a, b) || interleave(b, a)) return true;
  faults_.add(Code::outputs_overlap, {.argument = str(output.name), .value = str(other.name)});
  return false;
}

void TensorChecks::disjoint_all(std::span<const NamedView> outputs,
                                std::span<const NamedView> inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const NamedView& input : inputs) disjoint(outputs[i], input);
    for (std::size_t j = 0; j < i; ++j) disjoint(outputs[i], outputs[j]);
  }
}

}  // namespace packattn
