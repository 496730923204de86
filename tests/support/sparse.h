// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "packattn/tensor.h"

namespace packattn::test {

/// Address space without memory behind it: pages appear where something is written. Tensors in it
/// can have strides that no buffer of a test could have.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes);
  ~SparseMemory();
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  float* floats() const { return static_cast<float*>(memory_); }

 private:
  void* memory_;
  std::size_t bytes_;
};

}  // namespace packattn::test
