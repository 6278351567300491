// Launches of the kernels for one dtype of the input; instantiated in a file of its own for each.
#pragma once

#include <algorithm>

#include "cuda/sm90/append/convert.cuh"
#include "cuda/sm90/append/kernel.cuh"

namespace mpfa::sm90 {

/// Blocks for each of K, V and Q: threads that see some tokens each.
inline constexpr std::int64_t kMostBlocks = 264;

template <AppendInput kInput>
cudaError_t launch_append_of(bool rope, const AppendParams& p, cudaStream_t stream) {
  // A line is a warp for every head and part of a row: at least one, and no more than some waves of blocks.
  std::int64_t one = 1, all = 1;
  for (int i = 0; i < p.operands; ++i) {
    const RowFormat& row = p.operand[i].row;
    const std::int64_t warps = static_cast<std::int64_t>(p.heads) * row.parts, tokens = 32 / row.lanes;
    constexpr std::int64_t kWarps = kAppendThreads / 32;
    one = std::max(one, (warps + kWarps - 1) / kWarps);
    all = std::max(all, (warps * ((p.n + tokens - 1) / tokens) + kWarps - 1) / kWarps);
  }
  const bool queries = rope && p.rope.q != nullptr;
  if (queries) {
    const std::int64_t threads = static_cast<std::int64_t>(p.rope.q_rows) * p.rope.q_heads * p.operand[0].row.d / 8;
    all = std::max(all, (threads + kAppendThreads - 1) / kAppendThreads);
  }
  const dim3 grid(static_cast<unsigned>(std::clamp(all, one, std::max(one, kMostBlocks))),
                  static_cast<unsigned>(p.operands + (queries ? 1 : 0)));
  if (rope) {
    append<kInput, true><<<grid, kAppendThreads, 0, stream>>>(p);
  } else {
    append<kInput, false><<<grid, kAppendThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

template <AppendInput kInput>
cudaError_t launch_convert_of(const ConvertParams& p, cudaStream_t stream) {
  const cudaError_t e =
      cudaFuncSetAttribute(convert<kInput>, cudaFuncAttributeMaxDynamicSharedMemorySize, p.page_bytes);
  if (e != cudaSuccess) return e;
  convert<kInput><<<static_cast<unsigned>(p.n), kConvertThreads, static_cast<std::size_t>(p.page_bytes), stream>>>(p);
  return cudaGetLastError();
}

}  // namespace mpfa::sm90
