// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "packattn/tensor.h"

#include "support/device_memory.h"

namespace packattn::test {

/// How a tensor lies in memory.
enum class Form {
  contiguous,
  wide,         ///< gaps after every row and every head, as in a slice of a fused tensor
  heads_first,  ///< the last but one dimension is the outermost one
  odd_base,     ///< starts one element past an aligned address
  odd_unit,     ///< dimensions of size 1 have a stride that says nothing
};
std::string to_string(Form form);

/// A host tensor inside guard bytes. Every byte that is not one of its elements holds 0xff, a NaN
/// in every floating-point type: reading it poisons the result, writing it is noticed. A fresh
/// tensor's own elements hold the same, so that an element nobody wrote is noticed too.
class Guarded {
 public:
  Guarded() = default;
  Guarded(Guarded&&) = default;  // not copyable: a copy would have another alignment
  Guarded& operator=(Guarded&&) = default;
  Guarded(DType dtype, std::vector<std::int64_t> shape, Form form = Form::contiguous);

  bool present() const { return dtype_ != DType::none; }
  TensorView view(bool read_only = false) const;
  /// The same tensor said to be on a CUDA device: for checks, which touch no element.
  TensorView view_as_if_on_device() const;
  /// Copies all bytes, guards too, to device memory of the same alignment and gives the view there.
  TensorView send();
  /// Brings all bytes back from where `send` put them.
  void fetch();
  DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t numel() const { return numel_; }

  /// Elements by their row-major position.
  void set(std::int64_t flat, double value);
  void set_integer(std::int64_t flat, std::int64_t value);  ///< i32 and i64, every value exact
  double get(std::int64_t flat) const;
  void fill(std::span<const float> values, std::int64_t from = 0);
  std::vector<float> values(std::int64_t from = 0, std::int64_t count = -1) const;

  /// Makes every own element unwritten again.
  void poison();
  /// Remembers every byte as it is now, for `unchanged`.
  void freeze() { frozen_ = memory_; }
  bool unchanged() const { return memory_ == frozen_; }
  bool unchanged(std::int64_t from, std::int64_t count) const;
  /// Puts back what `freeze` saw.
  void restore() { std::copy(frozen_.begin(), frozen_.end(), memory_.begin()); }
  /// Bytes that are not elements and were written to.
  std::int64_t damaged() const;
  /// Elements that still hold the poison.
  std::int64_t unwritten(std::int64_t from = 0, std::int64_t count = -1) const;
  bool is_poison(std::int64_t flat) const;

 private:
  std::size_t offset(std::int64_t flat) const;  // in bytes, from the start of memory_
  /// Elements that follow each other in memory: visit(byte offset, count). Every form's last
  /// stride is 1.
  template <class Visit>
  void for_each_run(std::int64_t from, std::int64_t count, Visit visit) const;

  DType dtype_ = DType::none;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
  std::int64_t numel_ = 0;
  std::size_t element_ = 0;
  std::size_t base_ = 0;  // of element 0, in bytes from the start of memory_
  std::vector<std::byte> memory_;
  std::vector<std::byte> frozen_;
  std::shared_ptr<DeviceMemory> device_;
  std::size_t device_offset_ = 0;  // keeps addresses equal modulo 64 on both sides
};

}  // namespace packattn::test
