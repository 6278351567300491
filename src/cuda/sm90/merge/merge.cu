#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/sm90/merge/launch.h"

namespace mpfa::sm90 {
namespace {

constexpr int kWarps = 8;

__device__ float load(const void* from, DType t, std::int64_t i) {
  if (t == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]);
  if (t == DType::f16) return __half2float(static_cast<const __half*>(from)[i]);
  return static_cast<const float*>(from)[i];
}
__device__ void store(void* to, DType t, std::int64_t i, float x) {
  if (t == DType::bf16) {
    static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(x);
  } else if (t == DType::f16) {
    static_cast<__half*>(to)[i] = __float2half_rn(x);
  } else {
    static_cast<float*>(to)[i] = x;
  }
}

__global__ void __launch_bounds__(kWarps * 32) merge(const MergeParams p) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (at >= p.all) return;
  const auto index = static_cast<std::int32_t>(at);  // of an LSE, so that neighbours are read together
  const std::int32_t row = index % p.rows, head = index / p.rows % p.heads, batch = index / p.rows / p.heads;
  const float a = p.lse_a[index], b = p.lse_b[index];
  // Empty sides are left out by selection: their rows may hold anything.
  const bool no_a = a == -INFINITY, no_b = b == -INFINITY;
  const float top = fmaxf(a, b), weight_a = expf(a - top), weight_b = expf(b - top), sum = weight_a + weight_b;
  const auto place = [&](const auto& x) { return batch * x.batch + row * x.row + head * x.head; };
  const std::int64_t in_a = place(p.a), in_b = place(p.b), in_out = place(p.out);
  for (std::int32_t i = threadIdx.x % 32; i < p.d; i += 32) {
    const float x = no_a ? 0.0F : load(p.a.data, p.a.dtype, in_a + i);
    const float y = no_b ? 0.0F : load(p.b.data, p.b.dtype, in_b + i);
    store(p.out.data, p.out.dtype, in_out + i, no_b ? x : no_a ? y : (weight_a * x + weight_b * y) / sum);
  }
  __syncwarp();  // lse may be lse_a
  if (p.lse != nullptr && threadIdx.x % 32 == 0) p.lse[index] = no_b ? a : no_a ? b : top + logf(sum);
}

}  // namespace

cudaError_t launch_merge(const MergeParams& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((static_cast<std::int64_t>(p.all) + kWarps - 1) / kWarps);
  void* arguments[] = {const_cast<MergeParams*>(&p)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&merge), dim3(blocks), dim3(kWarps * 32), arguments, 0, stream);
}

}  // namespace mpfa::sm90
