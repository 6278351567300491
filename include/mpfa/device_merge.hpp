// Results of attention over parts of the keys, put together in GPU memory.
#pragma once

#include "mpfa/attention.hpp"
#include "mpfa/status.hpp"
#include "mpfa/tensor.hpp"

namespace mpfa {

/// One call of merge_states on a device: (a, lse_a) + (b, lse_b) over disjoint keys. Everything behind a pointer is
/// device memory. Each tensor has a dtype of its own (f32, bf16 or f16); the sum is taken in float32.
struct StateMerge {
  TensorView a, b;               // [batch, rows, heads, d], ragged rows [1, total, heads, d]; contiguous along d
  const float* lse_a = nullptr;  // [batch, heads, rows], natural log, as attend writes it
  const float* lse_b = nullptr;
  MutableTensorView out;   // the same shape; may be a or b
  float* lse = nullptr;    // [batch, heads, rows], or null; may be lse_a or lse_b
  void* stream = nullptr;  // cudaStream_t; null: the default stream
};

/// Enqueues and returns; allocates nothing. An LSE of -inf is the identity, bit for bit, whatever its row holds; both
/// -inf give zeros and -inf. Memory of the host or of another device than the current one is refused. unsupported:
/// another device, no card, or built without CUDA kernels.
[[nodiscard]] Status merge_states(const StateMerge& merge, Device device);

}  // namespace mpfa
