// SPDX-License-Identifier: Apache-2.0
#include "support/sparse.h"

#include <stdexcept>

#include <sys/mman.h>

namespace packattn::test {

SparseMemory::SparseMemory(std::size_t bytes)
    : memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
      bytes_(bytes) {
  if (memory_ == MAP_FAILED) throw std::runtime_error("no address space for a sparse tensor");
}

SparseMemory::~SparseMemory() { munmap(memory_, bytes_); }

}  // namespace packattn::test
