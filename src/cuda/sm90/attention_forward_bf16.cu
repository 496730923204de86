// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/attention_forward.cuh"

namespace packattn::cuda::sm90 {

void launch_attention_forward_bf16(const AttentionParams& p, const ForwardLaunch& launch,
                                   ForwardBucket bucket, cudaStream_t stream) {
  launch_forward<__nv_bfloat16>(p, launch, bucket, stream);
}

}  // namespace packattn::cuda::sm90
