// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "packattn/tensor.h"

#include "errors/fault_list.h"

namespace packattn {

/// A tensor argument under the name that faults give it.
struct NamedView {
  const TensorView& view;
  std::string_view name;
};

/// The checks that every operation shares. Each adds its faults and says whether all was well;
/// later checks on a tensor should run only if the earlier ones on it passed.
class TensorChecks {
 public:
  explicit TensorChecks(FaultList& faults) : faults_(faults) {}

  /// Given, of this rank, with no negative size. `shape` is for the message: "[T, H, D]".
  bool given(NamedView t, int rank, std::string_view shape, std::string_view note = {});
  /// Like `given`, but fine when absent (then false, without a fault).
  bool optional(NamedView t, int rank, std::string_view shape);

  bool dtype(NamedView t, std::initializer_list<DType> allowed);
  bool same_dtype(NamedView t, NamedView as);
  bool same_device(NamedView t, NamedView as);
  bool shape(NamedView t, std::initializer_list<std::int64_t> wanted);

  /// Data pointer and alignment, of a tensor that may have any strides.
  bool addressable(NamedView t);
  /// The same and the last stride, of a tensor that is read.
  bool readable(NamedView t);
  /// The same for one that is written, and that it is writable and does not overlap itself.
  bool writable(NamedView t);
  /// `output` shares no element with `other`; absent tensors share nothing.
  bool disjoint(NamedView output, NamedView other);
  /// Every output shares nothing with any input, nor with another output.
  void disjoint_all(std::span<const NamedView> outputs, std::span<const NamedView> inputs);

  FaultList& faults() { return faults_; }

 private:
  FaultList& faults_;
};

/// "nan" whatever its sign bit, which means nothing to a reader.
std::string number_text(double value);

/// Options are doubles and the arithmetic is fp32: what leaves its range would become inf, or 0,
/// on the way, and a softcap of 0 is another option than a small one.
bool is_finite_float(double value);
bool is_zero_or_positive_float(double value);
constexpr const char* zero_or_positive_float = "0, or from 1.2e-38 to 3.4e38 (fp32)";

/// "fp32, fp16 or bf16"
std::string dtype_list(std::initializer_list<DType> dtypes);

}  // namespace packattn
