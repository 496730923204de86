// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "core/check_tensors.h"

namespace packattn {

/// Integers of a slot tensor, [N] or [N, S], by sequence and column.
struct Slots {
  const TensorView* view = nullptr;
  std::string_view name;

  bool given() const { return view->present(); }
  /// Whether the host can look at the values; those of a device stay there.
  bool readable() const { return view->device().is_host(); }
  NamedView named() const { return {*view, name}; }
  /// 0 for [N]
  std::int64_t columns() const { return view->rank() == 2 ? view->size(1) : 0; }
  std::int64_t at(std::size_t n, std::int64_t column) const;
  /// "index 3" or "[3, 1]"
  std::string position(std::size_t n, std::int64_t column) const;
};

/// Which rows of their pools the sequences of one call read and write.
class SlotUse {
 public:
  SlotUse(std::int64_t null_slot, FaultList& faults) : null_slot_(null_slot), faults_(faults) {}

  /// The slot at (n, column), or -1: the null slot, or one that the pool does not have, which is a
  /// fault. An entry that serves reading and writing is reported once.
  std::int64_t in_pool(const Slots& slots, std::size_t n, std::int64_t column,
                       const TensorView& pool);
  /// Sequence n writes this slot through `slots`; a second writer is a fault.
  void note_write(const Slots& slots, std::size_t n, std::int64_t column, std::int64_t slot);

  bool written_twice() const { return written_twice_; }
  /// The sequence that writes a slot, or -1.
  std::int64_t writer_of(std::int64_t slot) const;

 private:
  std::int64_t null_slot_;
  FaultList& faults_;
  std::set<std::tuple<const TensorView*, std::size_t, std::int64_t>> reported_;
  bool written_twice_ = false;
  std::unordered_map<std::int64_t, std::size_t> writer_;  ///< slot to the sequence that writes it
};

}  // namespace packattn
