// Launches of the kernels for one dtype of the input; instantiated in a file of its own for each.
#pragma once

#include <algorithm>

#include "cuda/sm90/append/convert.cuh"
#include "cuda/sm90/append/kernel.cuh"

namespace mpfa::sm90 {

inline constexpr std::int64_t kMultiprocessors = 132;

/// Warps of a block: as many as divide the columns, so that none is idle, or all.
inline int warps_for(std::int64_t columns) {
  constexpr int kMost = kAppendThreads / 32;
  if (columns < kMost) return static_cast<int>(kMost / columns * columns);
  for (int w = kMost; w > kMost / 2; --w) {
    if (columns % w == 0) return w;
  }
  return kMost;
}

/// Tiles of n tokens, such that the blocks of all operands fill the `slots` of the card once, or a few times. A block
/// goes in steps of the tokens that its warps take at a time.
inline void divide_tokens(AppendParams& p, std::int64_t warps, std::int64_t slots) {
  std::int64_t work = 0;
  for (int i = 0; i < p.operands; ++i) {
    AppendOperand& o = p.operand[i];
    const std::int64_t columns = static_cast<std::int64_t>(p.heads) * o.row.parts, across = std::min(columns, warps);
    o.columns = static_cast<std::int32_t>(columns), o.lines = static_cast<std::int32_t>(warps / across);
    o.across = make_divisor(static_cast<std::uint32_t>(across));
    o.groups = make_divisor(static_cast<std::uint32_t>((columns + across - 1) / across));
    work += o.groups.d * static_cast<std::int64_t>(p.n);
  }
  const std::int64_t waves = std::max<std::int64_t>(1, (work + slots * kMostTile - 1) / (slots * kMostTile));
  for (int i = 0; i < p.operands; ++i) {
    AppendOperand& o = p.operand[i];
    const std::int64_t step = o.lines * (32 / o.row.lanes), steps = (p.n + step - 1) / step, most = kMostTile / step;
    const std::int64_t fit = std::max(slots * waves * p.n / std::max<std::int64_t>(work, 1), (steps + most - 1) / most);
    const std::int64_t tiles = std::min(steps, std::max<std::int64_t>(fit, 1)),
                       parts = std::max<std::int64_t>(tiles, 1);
    o.steps = static_cast<std::int32_t>(steps / parts), o.longer = static_cast<std::int32_t>(steps % parts);
    o.tile = static_cast<std::int32_t>((o.steps + (o.longer > 0 ? 1 : 0)) * step);
    o.blocks = static_cast<std::int32_t>(o.groups.d * tiles);
  }
}

/// Threads of a row of Q: 8 pairs that turn, or 8 other channels, each; 1 where Q is not laid out for that.
inline std::int64_t query_shares(const AppendRope& r, std::int64_t d) {
  const std::int64_t alone = r.style == RopeStyle::half ? r.half : 0;  // partners
  return (d - alone) / (r.q_wide ? 8 : 1);
}

template <AppendInput kInput>
cudaError_t launch_append_of(bool rope, const AppendParams& params, cudaStream_t stream) {
  AppendParams p = params;
  const auto tries_two = [](const AppendOperand& o) { return o.row.format == AppendFormat::e2m1_e4m3_four_over_six; };
  const bool few = rope || tries_two(p.operand[0]) || tries_two(p.operand[p.operands - 1]);
  const std::int64_t slots = kMultiprocessors * (few ? kFewBlocks : kManyBlocks);
  const int warps = warps_for(static_cast<std::int64_t>(p.heads) * p.operand[0].row.parts);
  divide_tokens(p, warps, slots);
  const int threads = 32 * warps;
  std::int64_t blocks = static_cast<std::int64_t>(p.operand[0].blocks) + p.operand[1].blocks;
  if (rope && p.rope.q != nullptr) {
    const std::int64_t shares = query_shares(p.rope, p.operand[0].row.d);
    p.rope.shares_div = make_divisor(static_cast<std::uint32_t>(shares));
    const std::int64_t groups = (p.rope.q_heads + kQueryHeads - 1) / kQueryHeads;
    p.rope.groups_div = make_divisor(static_cast<std::uint32_t>(groups));
    blocks += (p.rope.q_rows * groups * shares + threads - 1) / threads;
  }
  const auto kernel = rope  ? append<kInput, true, kFewBlocks>
                      : few ? append<kInput, false, kFewBlocks>
                            : append<kInput, false, kManyBlocks>;
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream>>>(p);
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
