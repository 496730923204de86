// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "packattn/implementation.h"

namespace packattn {

/// Host scratch memory for one call: the caller's if it is given and large enough (PA5002 if it
/// is not), ours otherwise (PA5001 if there is none to be had).
class Workspace {
 public:
  static constexpr std::size_t alignment = 64;

  Workspace(const Context& context, std::size_t bytes);
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  struct Free { void operator()(std::byte* memory) const; };
  std::unique_ptr<std::byte, Free> owned_;
  std::span<std::byte> bytes_;
};

}  // namespace packattn
