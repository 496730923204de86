// SPDX-License-Identifier: Apache-2.0
#include "core/slots.h"

#include <fmt/format.h>

namespace packattn {

std::int64_t Slots::at(std::size_t n, std::int64_t column) const {
  const TensorView& x = *view;
  const std::int64_t offset =
      static_cast<std::int64_t>(n) * x.stride(0) + (x.rank() == 2 ? column * x.stride(1) : 0);
  return x.dtype() == DType::i32 ? x.as<std::int32_t>()[offset] : x.as<std::int64_t>()[offset];
}

std::string Slots::position(std::size_t n, std::int64_t column) const {
  return columns() > 0 ? fmt::format("[{}, {}]", n, column) : fmt::format("index {}", n);
}

std::int64_t SlotUse::in_pool(const Slots& slots, std::size_t n, std::int64_t column,
                              const TensorView& pool) {
  const std::int64_t slot = slots.at(n, column);
  if (slot == null_slot_) return -1;
  if (slot >= 0 && slot < pool.size(0)) return slot;
  if (reported_.emplace(slots.view, n, column).second) {
    faults_.add(Code::slot_range, {.argument = std::string(slots.name),
                                   .position = slots.position(n, column),
                                   .value = std::to_string(slot),
                                   .limit = fmt::format("0 to {}", pool.size(0) - 1)});
  }
  return -1;
}

void SlotUse::note_write(const Slots& slots, std::size_t n, std::int64_t column,
                         std::int64_t slot) {
  const auto [first, added] = writer_.try_emplace(slot, n);
  if (added || !slots.given()) return;
  written_twice_ = true;
  faults_.add(Code::slot_duplicate,
              {.argument = std::string(slots.name),
               .position = slots.position(n, column),
               .value = std::to_string(slot),
               .note = fmt::format("sequence {} writes it too", first->second)});
}

std::int64_t SlotUse::writer_of(std::int64_t slot) const {
  const auto found = writer_.find(slot);
  return found == writer_.end() ? -1 : static_cast<std::int64_t>(found->second);
}

}  // namespace packattn
