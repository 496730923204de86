// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/tensor_map.h"

#include <algorithm>

#include "cuda/runtime.h"
#include "errors/fault_list.h"

namespace packattn::cuda::sm90 {
namespace {

constexpr int element_bytes = 2;
constexpr int alignment = 16;

/// From the driver that is there: linking to it would keep the library from loading without one.
auto encode_function() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                           cudaEnableDefault, &result),
          "cudaGetDriverEntryPoint");
    if (result != cudaDriverEntryPointSuccess) {
      fail(Code::cuda_failed,
           {.argument = "cuTensorMapEncodeTiled", .value = "the driver does not have it"});
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const void* data, DType dtype, std::span<const BoxDimension> dimensions) {
  cuuint64_t sizes[5];
  cuuint64_t strides[5];
  cuuint32_t box[5];
  cuuint32_t steps[5];
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    const BoxDimension& d = dimensions[i];
    // No element is read of an empty tensor, nor is the stride of a single row used; but a map of
    // neither can be made.
    const std::int64_t bytes = d.size > 1 ? d.stride * element_bytes : alignment;
    sizes[i] = static_cast<cuuint64_t>(std::max<std::int64_t>(1, d.size));
    strides[i] = static_cast<cuuint64_t>(bytes);
    box[i] = static_cast<cuuint32_t>(d.box);
    steps[i] = 1;
  }
  CUtensorMap map;
  const CUresult status = encode_function()(
      &map,
      dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      static_cast<cuuint32_t>(dimensions.size()), const_cast<void*>(data), sizes, strides + 1, box,
      steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    fail(Code::cuda_failed, {.argument = "cuTensorMapEncodeTiled",
                             .value = "error " + std::to_string(static_cast<int>(status))});
  }
  return map;
}

}  // namespace packattn::cuda::sm90
