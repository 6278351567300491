// A block converts a page: all of it goes to shared memory before the first code is written over it.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/append/kernel.cuh"

namespace mpfa::sm90 {

inline constexpr int kConvertThreads = 512;

template <AppendInput kInput, class Q>
__device__ __forceinline__ void convert_rows(const ConvertParams& p, const std::uint8_t* staged, std::uint8_t* page) {
  const int columns = p.heads * p.row.parts, warps = kConvertThreads / 32;
  Counts counts;
  const int lines = (p.page_size * p.row.lanes + 31) / 32;
  for (int w = static_cast<int>(threadIdx.x) / 32; w < columns * lines; w += warps) {
    const int line = w / columns;
    const Lane at(p.row, w - line * columns);
    const Q quantiser(p.row, at.head, at.lane);
    float x[kChunk];
    const int token = line * at.tokens + at.token;
    const bool written = at.active && token < p.page_size;
    RawRun<kInput> raw;
    raw.clear();
    if (written) raw.load(staged + at.head * p.x_head + token * p.x_row, at.channel);
    raw.widen(x);
    if (p.row.mean != nullptr && at.active) {
      const auto* mean = reinterpret_cast<const float4*>(p.row.mean + at.head * p.row.d + at.channel);
#pragma unroll
      for (int j = 0; j < kChunk / 4; ++j) {
        const float4 m = mean[j];
        x[4 * j] = __fsub_rn(x[4 * j], m.x), x[4 * j + 1] = __fsub_rn(x[4 * j + 1], m.y);
        x[4 * j + 2] = __fsub_rn(x[4 * j + 2], m.z), x[4 * j + 3] = __fsub_rn(x[4 * j + 3], m.w);
      }
    }
    Block<typename Q::Codec> block;
    quantiser(x, written, block, counts);
    if (!written) continue;
    const int index = at.channel / kChunk >> p.row.group_shift;
    store<Q>(block, quantiser.leads,
             page + at.head * p.data_head + token * p.data_row + at.channel * Q::Codec::kBits / 8,
             page + p.scales + at.head * p.scale_head + token * p.scale_row + index * Q::kScaleBytes);
  }
  add_counts(p.counters, counts);
}

template <AppendInput kInput>
__global__ void __launch_bounds__(kConvertThreads) convert(const __grid_constant__ ConvertParams p) {
  extern __shared__ uint4 staged[];
  const std::int32_t id = p.ids[blockIdx.x];
  if (id < 0 || id >= p.num_pages) return;
  std::uint8_t* const page = p.pages + id * p.page_stride;
  for (int i = static_cast<int>(threadIdx.x); i < p.page_bytes / 16; i += kConvertThreads) {
    ptx::copy_async16(ptx::shared_address(staged + i), page + 16 * i);
  }
  ptx::commit_copies();
  ptx::wait_copies<0>();
  __syncthreads();
  const auto* from = reinterpret_cast<const std::uint8_t*>(staged);
  visit(p.row, [&]<class Q>() {
    if constexpr (Q::Codec::kBits <= 8) convert_rows<kInput, Q>(p, from, page);
  });
}

}  // namespace mpfa::sm90
