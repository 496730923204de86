// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "call_reader.h"

namespace packattn::python {

/// A checked batch that Python holds.
class BatchObject : public ffi::Object {
 public:
  explicit BatchObject(PackedBatch checked) : batch(std::move(checked)) {}
  PackedBatch batch;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("packattn.Batch", BatchObject, ffi::Object)
};

/// The boundaries of an operation: nothing, one checked batch, or the 16 parts of a description.
struct BatchArgument {
  const PackedBatch* batch = nullptr;
  std::optional<BatchSpec> spec = {};

  PackedBatch checked() const { return batch ? *batch : PackedBatch(*spec); }
};
BatchSpec read_spec(CallReader& call);
BatchArgument read_batch(CallReader& call);

/// The five arguments of every operation that say how it runs; `like` decides the stream.
Context read_context(CallReader& call, const TensorView& like);

}  // namespace packattn::python
