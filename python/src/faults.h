// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <vector>

#include <tvm/ffi/tvm_ffi.h>

#include "packattn/error.h"

namespace packattn::python {

/// What Python turns into an exception: the rendered text and the faults as JSON.
tvm::ffi::Any refusal(const std::vector<Fault>& faults);

/// Runs `body`; a refused call is returned, not thrown, because an exception that crosses the
/// module boundary keeps only its text.
template <class Body>
tvm::ffi::Any guarded(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    return refusal(error.faults());
  } catch (const tvm::ffi::Error&) {
    throw;
  } catch (const std::exception& error) {
    return refusal({make_fault(Code::internal, {.argument = "packattn", .value = error.what()})});
  }
}

}  // namespace packattn::python
