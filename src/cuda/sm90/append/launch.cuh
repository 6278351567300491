// Launches of the kernels for one dtype of the input; instantiated in a file of its own for each.
#pragma once

#include <algorithm>

#include "cuda/sm90/append/convert.cuh"
#include "cuda/sm90/append/kernel.cuh"

namespace mpfa::sm90 {

/// Blocks for K, and as many for V: threads see some tokens each.
inline constexpr std::int64_t kMostBlocks = 264;

/// Threads of a row of Q: 8 pairs that turn, or 8 other channels, each; 1 where Q is not laid out for that.
inline std::int64_t query_shares(const AppendRope& r, std::int64_t d) {
  const std::int64_t alone = r.style == RopeStyle::half ? r.half : 0;  // partners
  return (d - alone) / (r.q_wide ? 8 : 1);
}

template <AppendInput kInput>
cudaError_t launch_append_of(bool rope, const AppendParams& params, cudaStream_t stream) {
  constexpr std::int64_t kWarps = kAppendThreads / 32;
  AppendParams p = params;
  // A line is a warp for every head and part of a row: at least one.
  std::int64_t one = 1, all = 1;
  for (int i = 0; i < p.operands; ++i) {
    const RowFormat& row = p.operand[i].row;
    const std::int64_t columns = static_cast<std::int64_t>(p.heads) * row.parts, tokens = 32 / row.lanes;
    p.columns[i] = make_divisor(static_cast<std::uint32_t>(columns));
    one = std::max(one, (columns + kWarps - 1) / kWarps);
    all = std::max(all, (columns * ((p.n + tokens - 1) / tokens) + kWarps - 1) / kWarps);
  }
  p.blocks = static_cast<std::int32_t>(std::clamp(all, one, std::max(one, kMostBlocks)));
  for (int i = 0; i < p.operands; ++i) {
    p.operand[i].lines = static_cast<std::int32_t>(p.blocks * kWarps / p.columns[i].d);
  }
  std::int64_t blocks = static_cast<std::int64_t>(p.blocks) * p.operands;
  if (rope && p.rope.q != nullptr) {
    const std::int64_t shares = query_shares(p.rope, p.operand[0].row.d);
    p.rope.shares_div = make_divisor(static_cast<std::uint32_t>(shares));
    const std::int64_t groups = (p.rope.q_heads + kQueryHeads - 1) / kQueryHeads;
    p.rope.groups_div = make_divisor(static_cast<std::uint32_t>(groups));
    blocks += (p.rope.q_rows * groups * shares + kAppendThreads - 1) / kAppendThreads;
  }
  if (rope) {
    append<kInput, true><<<static_cast<unsigned>(blocks), kAppendThreads, 0, stream>>>(p);
  } else {
    append<kInput, false><<<static_cast<unsigned>(blocks), kAppendThreads, 0, stream>>>(p);
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
