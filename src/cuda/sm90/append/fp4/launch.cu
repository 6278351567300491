#include <algorithm>

#include "cuda/sm90/append/fp4/kernel.cuh"
#include "cuda/sm90/append/fp4/launch.h"

namespace mpfa::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 264;  // for K, and as many for V: threads that see some tokens each

template <AppendInput kInput>
void launch(ScaleType scale, const AppendParams& p, cudaStream_t stream) {
  const std::int64_t blocks = std::max(p.operand[0].blocks, p.operand[1].blocks);
  // Threads for a token at least, and no more than some waves of blocks.
  const std::int64_t one = (p.heads * blocks + kThreads - 1) / kThreads;
  const std::int64_t all = (p.n * p.heads * blocks + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(std::clamp<std::int64_t>(all, one, std::max(one, kMostBlocks))), 2);
  if (scale == ScaleType::e8m0) {
    append_fp4<kInput, true><<<grid, kThreads, 0, stream>>>(p);
  } else {
    append_fp4<kInput, false><<<grid, kThreads, 0, stream>>>(p);
  }
}

}  // namespace

cudaError_t launch_append(AppendInput input, ScaleType scale, const AppendParams& p, cudaStream_t stream) {
  if (p.n == 0) return cudaSuccess;
  switch (input) {
    case AppendInput::f32: launch<AppendInput::f32>(scale, p, stream); break;
    case AppendInput::bf16: launch<AppendInput::bf16>(scale, p, stream); break;
    case AppendInput::f16: launch<AppendInput::f16>(scale, p, stream); break;
  }
  return cudaGetLastError();
}

}  // namespace mpfa::sm90
