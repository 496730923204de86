// SPDX-License-Identifier: Apache-2.0
#include "core/workspace.h"

#include <new>

#include "core/injection.h"
#include "errors/fault_list.h"

namespace packattn {

void Workspace::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, std::align_val_t{alignment});
}

Workspace::Workspace(const Context& context, std::size_t bytes) {
  if (!context.workspace.empty()) {
    if (context.workspace.size() < bytes) {
      fail(Code::workspace_small, {.argument = "workspace",
                                   .value = std::to_string(context.workspace.size()),
                                   .limit = std::to_string(bytes)});
    }
    bytes_ = context.workspace;
    return;
  }
  if (bytes == 0) return;
  void* memory = injected_faults().fail_allocations
                     ? nullptr
                     : ::operator new(bytes, std::align_val_t{alignment}, std::nothrow);
  if (memory == nullptr) {
    fail(Code::out_of_memory, {.argument = "workspace", .value = std::to_string(bytes)});
  }
  owned_.reset(static_cast<std::byte*>(memory));
  bytes_ = {owned_.get(), bytes};
}

}  // namespace packattn
