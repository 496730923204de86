// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "core/implementation_table.h"
#include "core/layer_calls.h"

/// GPU kernels. Without a CUDA compiler no_cuda.cpp stands in: empty lists.
namespace packattn::cuda {

std::span<const AttentionImplementation> attention();
std::span<const KdaImplementation> kda_recurrent();
std::span<const KdaImplementation> kda_chunk();
std::span<const KdaImplementation> kda_gate();
std::span<const L2NormImplementation> l2norm();
std::span<const ShortConvolutionImplementation> short_convolution();
std::span<const GatedRmsNormImplementation> gated_rms_norm();

/// pack and unpack, and merge_states, of tensors on a device; legal by construction.
void copy_tokens(const TensorView& padded, const PackedBatch& batch, const TensorView& packed,
                 Side side, bool packing, void* stream);
void merge_states(const MergeArgs& args, void* stream);

/// Copies bytes of a device to the host, after what `stream` has been given so far, and waits.
void read_back(void* to, const void* from, std::size_t bytes, Device device, void* stream);

/// Reads and clears a stream's status word; a fault in the words of the host's own checks.
std::optional<Fault> take_status(Device device, void* stream);

}  // namespace packattn::cuda
