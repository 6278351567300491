// Sums of two partial results of attention, a warp for every row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mpfa/tensor.hpp"

namespace mpfa::sm90 {

/// Rows [batch, rows, heads] of d elements side by side; strides in elements.
template <class Pointer>
struct MergeOperand {
  Pointer data;
  std::int64_t batch, row, head;
  DType dtype;  // f32, bf16 or f16
};

struct MergeParams {
  MergeOperand<const void*> a, b;
  MergeOperand<void*> out;
  const float *lse_a, *lse_b;        // [batch, heads, rows]
  float* lse;                        // or null
  std::int32_t all, rows, heads, d;  // all: batch * rows * heads
};

[[nodiscard]] cudaError_t launch_merge(const MergeParams& params, cudaStream_t stream);

}  // namespace mpfa::sm90
