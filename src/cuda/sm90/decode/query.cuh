// Query rows on their way to shared memory, as B operands. Nothing can begin before they are there, so that several
// warps prepare them: neighbouring threads have the channels of a row.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/sm90/decode/group_scores.cuh"
#include "cuda/sm90/decode/merge.cuh"
#include "cuda/sm90/decode/round_query.cuh"
#include "cuda/sm90/decode/schedule.cuh"
#include "cuda/sm90/decode/softmax.cuh"
#include "cuda/sm90/decode/tile.cuh"

namespace mpfa::sm90 {

/// The thread's channels of a row of each of the warp's parts, 8 of the chunk: 8 side by side for 4-bit keys, twice 4
/// for 8-bit keys and four times 2 for 16-bit keys, as a thread has them of a row of K.
template <class Config>
struct RawQuery {
  static constexpr int kParts = Config::kRowTiles * Config::kChunks;
  static constexpr int kOwn = (kParts + Config::kWarps - 1) / Config::kWarps;
  std::uint32_t q[kOwn][4];
};

/// Calls f(own index, row of the block, chunk) for the thread's parts.
template <class Config, class F>
__device__ __forceinline__ void for_query_parts(F&& f) {
  // From the last warp on, which has the fewest tiles.
  std::int32_t thread = threadIdx.x;
  ptx::compute_here(thread);
  if constexpr (Config::kTeams > 1) thread %= Config::kThreads;
  const int warp = Config::kWarps - 1 - thread / 32, own = thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < RawQuery<Config>::kOwn; ++i) {
    const int part = warp + i * Config::kWarps, place = part * 8 + own;
    if (part < RawQuery<Config>::kParts) f(i, place / Config::kChunks, place % Config::kChunks);
  }
}

/// Starts the loads of the piece's block of rows; rows and channels that do not exist are zero.
template <class Config>
__device__ __forceinline__ RawQuery<Config> load_query(const DecodeParams& p, const Work& work) {
  constexpr int kRun = 32 / Config::kKeyInfo.bits;  // channels side by side
  RawQuery<Config> raw{};
  const std::int32_t rows = work.sequence.sq * p.group;
  for_query_parts<Config>([&](int i, int row, int chunk) {
    const std::int32_t r = work.piece.row_block * Config::kRows + row;
    if (r >= rows) return;
    const auto* from = static_cast<const std::uint16_t*>(p.q) + threadIdx.x % 4 * kRun + chunk * 32 +
                       q_offset(p, work.sequence, work.piece.b, place_row(p, work.piece.head, r));
#pragma unroll
    for (int k = 0; k < 8; k += kRun) {
      const std::int32_t channel = chunk * 32 + k * 4 + static_cast<std::int32_t>(threadIdx.x % 4) * kRun;
      if (Config::kGeneral && channel >= p.head_dim) continue;
      load_bytes<kRun * 2>(reinterpret_cast<const std::uint8_t*>(from + k * 4), &raw.q[i][k / 2]);
    }
  });
  return raw;
}

/// Whether pairs of q are bf16 once round_query has rounded them.
template <class Config>
__device__ __forceinline__ bool query_is_bf16(const DecodeParams& p) {
  return p.q_bf16 || p.round_q_bf16 || (Config::kRankOne && p.round_q != 0);
}

/// Pairs of f16 become bf16.
__device__ __forceinline__ void round_to_bf16(std::uint32_t (&q)[4]) {
#pragma unroll
  for (std::uint32_t& pair : q) {
    const float2 v = unpack_q(pair, false);
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(v.x, v.y);
    pair = *reinterpret_cast<const std::uint32_t*>(&rounded);
  }
}

/// Centres and rounds a part to nvfp4 or bf16 as the recipe says; returns the largest magnitude of its row.
template <class Config>
__device__ __forceinline__ float round_query(const DecodeParams& p, const Work& work, int row, int chunk,
                                             std::uint32_t (&q)[4]) {
  if constexpr (Config::kRankOne) {
    if (p.round_q != 0) {
      const std::int32_t r = min(work.piece.row_block * Config::kRows + row, work.sequence.sq * p.group - 1);
      const float* mean = p.centre_q == 0 || p.sequences == nullptr ? nullptr : p.sequences[work.piece.b].q_mean;
      const std::int32_t channels = head_dim<Config>(p);
      const auto channel = chunk * 32 + static_cast<std::int32_t>(threadIdx.x % 4) * 8;
      if (mean != nullptr) mean += place_row(p, work.piece.head, r).head * channels + channel;
      round_nvfp4(q, p.q_bf16 != 0, channel < channels ? mean : nullptr);
    }
  }
  if (p.round_q_bf16) round_to_bf16(q);
  std::uint32_t largest_pair = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    largest_pair = __vmaxu2(largest_pair, q[k] & 0x7FFF7FFFU);  // magnitudes compare like integers
  }
  const float2 pair = unpack_q(largest_pair, query_is_bf16<Config>(p));
  float largest = fmaxf(pair.x, pair.y);
#pragma unroll
  for (int i = 1; i < 4 * Config::kChunks; i *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, i));
  }
  return largest;
}

/// Pairs of a row whose largest magnitude is `largest` become f16 in the order of K's registers; returns what these
/// have to be multiplied by. A row that the recipe keeps in 16 bits is scaled by a power of two so that its largest
/// element is in [2^14, 2^15): f16 then holds every bf16 and f16 element exactly down to 2^-31 of the largest.
template <class Config>
__device__ __forceinline__ float halve_query(const DecodeParams& p, std::uint32_t (&q)[4], float largest) {
  // Exponent field of the largest element; its inverse stays a normal number.
  const std::uint32_t field = min(max(__float_as_uint(largest) >> 23, 24U), 254U);
  const float lift = __uint_as_float((268U - field) << 23);
  float unit = __uint_as_float((field - 14U) << 23);  // 1 / lift
  float v[8];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 two = unpack_q(q[k], query_is_bf16<Config>(p));
    v[2 * k] = two.x * lift, v[2 * k + 1] = two.y * lift;
    if constexpr (Config::kKey == Operand::e4m3 || Config::kKey == Operand::int8) {
      if (p.round_q != 0) {
        const RowRounding<Config::kKey> rounding(largest);
        const float2 rounded = rounding(two);
        v[2 * k] = rounded.x, v[2 * k + 1] = rounded.y;
        unit = rounding.factor;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    // Words of eight codes become the pairs (k, k + 4).
    const bool apart = Config::kKeyInfo.bits == 4;
    q[k] = half2_bits(__floats2half2_rn(v[apart ? k : 2 * k], v[apart ? k + 4 : 2 * k + 1]));
  }
  return unit;
}

/// The thread's channels as terms of e4m3, see group_scores.cuh; returns what they have to be multiplied by.
template <class Config>
__device__ __forceinline__ float store_terms(const DecodeParams& p, const std::uint32_t (&q)[4], float largest, int row,
                                             int chunk, std::uint32_t queries) {
  // The largest element becomes one of [2^7, 2^8).
  const std::uint32_t field = min(max(__float_as_uint(largest) >> 23, 24U), 254U);
  const float lift = __uint_as_float((261U - field) << 23);
  float v[2][4];  // [odd channels][k]
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 two = unpack_q(q[k], query_is_bf16<Config>(p));
    v[0][k] = two.x * lift, v[1][k] = two.y * lift;
#pragma unroll
    for (auto& half : v) half[k] = fmaf(half[k], 0.0F, half[k]);  // infinities become NaN, as e4m3 has none
  }
#pragma unroll
  for (int term = 0; term < kQueryTerms; ++term) {
    if (term == 2 && !has_third_term(p)) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t bytes = take_e4m3(v[half]);
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(queries + term_place<Config>(row, chunk, term, half)), "r"(bytes)
                   : "memory");
    }
  }
  ptx::fence_shared_writes();
  return __uint_as_float((field - 7U) << 23);
}

/// What K's scales are to be multiplied by.
__device__ __forceinline__ float key_global(const DecodeParams& p, std::int32_t head) {
  return p.k.global == nullptr ? 1.0F : p.k.global[head];
}

/// The rows to shared memory, with their factors. For keys in bf16 q is bf16 and stays as it is.
template <class Config>
__device__ __forceinline__ void store_query(const DecodeParams& p, const Work& work, float global,
                                            RawQuery<Config>& raw, const Exchange<Config>& exchange) {
  const int t = threadIdx.x % 4;
  for_query_parts<Config>([&](int i, int row, int chunk) {
    auto& q = raw.q[i];
    const float largest = round_query<Config>(p, work, row, chunk, q);
    float unit = 1.0F;
    if constexpr (Config::kGroups) {
      unit = store_terms<Config>(p, q, largest, row, chunk, ptx::shared_address(exchange.queries));
    } else {
      if constexpr (Config::kKey != Operand::bf16) unit = halve_query<Config>(p, q, largest);
      exchange.queries[(row / 8 * Config::kChunks + chunk) * 32 + row % 8 * 4 + t] = make_uint4(q[0], q[1], q[2], q[3]);
    }
    if (chunk == 0 && t == 0) exchange.factors[row] = p.scale * kLog2E * Config::kKeyUnit * global * unit;
  });
}

}  // namespace mpfa::sm90
