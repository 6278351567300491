// Begin and end of a piece of the verify kernel: query rows to shared memory, and the sums of warpgroups there.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/query.cuh"
#include "cuda/sm90/verify/cluster.cuh"

namespace mpfa::sm90 {

/// The rows as B operand to shared memory, with their factors.
template <class Config>
__device__ __forceinline__ void store_group_query(const DecodeParams& p, const Work& work, RawQuery<Config>& raw,
                                                  const Exchange<Config>& exchange) {
  const int t = threadIdx.x % 4;
  const std::uint32_t to = ptx::shared_address(exchange.queries);
  const float factor = p.scale * kLog2E * kVerifyKeyUnit<Config> * key_global(p, work.piece.head);
  for_query_parts<Config>([&](int i, int row, int chunk) {
    auto& q = raw.q[i];
    const float largest = round_query<Config>(p, work, row, chunk, q);
    float unit = 1.0F;
    if constexpr (Config::kKey != Operand::bf16) unit = halve_query<Config>(p, q, largest);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + query_place<Config>(row, chunk, t, k)), "r"(q[k]) : "memory");
    }
    if (chunk == 0 && t == 0) exchange.factors[row] = factor * unit;
  });
  ptx::fence_shared_writes();
}

/// What the warp's outputs have to be multiplied by.
template <class Config>
__device__ __forceinline__ float group_value_unit(const GroupState<Config>& state) {
  if constexpr (Config::kValueScale == ScaleKind::e8m0) {
    return followed_unit(state.bias);
  } else if constexpr (Config::kValueScale == ScaleKind::group) {
    return Config::kValueInfo.unit * __uint_as_float((254U << 23) - state.bias);
  } else if constexpr (Config::kValueScale == ScaleKind::row) {
    return Config::kValueInfo.unit / kTokenDrop<Config> * __uint_as_float((254U << 23) - state.bias);
  } else {
    return Config::kValueInfo.unit;
  }
}

/// What each warpgroup has, to shared memory: outputs of (row, quad), relative to its maxima, and the sums of warps.
template <class Config>
__device__ __forceinline__ void put_group(const Exchange<Config>& exchange, const RowTops<Config>& tops,
                                          GroupState<Config>& state, bool bad_page, std::int32_t rows) {
  const int warp = team_warp<Config>(), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool bad = __any_sync(0xFFFFFFFFU, bad_page);
  const float unit = group_value_unit<Config>(state);
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
    const float4 top = tops.load(n);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sum = state.sum[n][j];
#pragma unroll
      for (int i = 4; i < 32; i *= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, i);
      if (bad) sum = __int_as_float(0x7FC00000);  // a page id outside the pool: NaN, not a wrong number
      const int row = n * 8 + 2 * t + j;
      if (g == 0) {
        exchange.max[warp * Config::kRows + row] = j == 0 ? top.z : top.w;
        exchange.sum[warp * Config::kRows + row] = sum;
      }
    }
  }
  ptx::sync_some<128>(group_barrier());  // the maxima are read, which lie where outputs go
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = n * 8 + 2 * t + j;
      if (row >= rows) continue;
#pragma unroll
      for (int h = 0; h < Config::kHalves; h += 2) {
        const ValuePart<Config> part(h);
        float4* const to = exchange.out(warp / 4, row, static_cast<int>(part.chunk) * 8 + g);
        const auto& a = state.out[h];
        if constexpr (Config::kHalves == 1) {
          reinterpret_cast<float2*>(to)[part.half] = make_float2(a[n * 4 + j] * unit, a[n * 4 + 2 + j] * unit);
        } else {
          const auto& b = state.out[h + 1];
          *to = make_float4(a[n * 4 + j] * unit, a[n * 4 + 2 + j] * unit, b[n * 4 + j] * unit, b[n * 4 + 2 + j] * unit);
        }
      }
    }
  }
}

/// The same for all of the team, which then waits for it.
template <class Config>
__device__ __forceinline__ void put_piece(const DecodeParams& p, const Work& done, const Exchange<Config>& exchange,
                                          GroupState<Config>& state, bool bad_page) {
  const std::int32_t rows = min(Config::kRows, done.sequence.sq * p.group - done.piece.row_block * Config::kRows);
  const std::uint32_t memory = ptx::shared_address(exchange.ring) + team_warp<Config>() / 4 * Config::kGroupBytes;
  put_group<Config>(exchange, RowTops<Config>(memory), state, bad_page, rows);
  sync_team<Config>();
}

}  // namespace mpfa::sm90
