// The query rows of a block in shared memory, from where warps take them as A operands.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/query.cuh"
#include "cuda/sm90/verify/scales.cuh"

namespace mpfa::sm90 {

/// Byte offset of word `word` of 8 channels of a row of q: for matrix loads without bank conflicts, or as the swizzle
/// of MMAs wants it that take q from there.
template <class Config>
__device__ __forceinline__ std::uint32_t query_word(std::int32_t row, std::uint32_t word) {
  const std::uint32_t r = static_cast<std::uint32_t>(row), place = (word ^ r % 8) * 16;
  if constexpr (Config::kCopies) return word / 8 * (Config::kRows * 128) + r * 128 + place % 128;
  return r * (Config::kD * 2) + place;
}

/// The rows to shared memory as f16 in the order of expanded codes, beside 16 bits as they are, with their factors.
template <class Config>
__device__ __forceinline__ void store_row_query(const DecodeParams& p, const Work& work, RawQuery<Config>& raw,
                                                const Exchange<Config>& exchange) {
  const std::uint32_t t = threadIdx.x % 4, to = ptx::shared_address(exchange.queries);
  const float factor = p.scale * kLog2E * Config::kKeyUnit * key_global(p, work.piece.head);
  for_query_parts<Config>([&](int i, int row, int chunk) {
    auto& q = raw.q[i];
    const float largest = round_query<Config>(p, work, row, chunk, q);
    const auto word = static_cast<std::uint32_t>(chunk) * 4;
    float unit = 1.0F;
    if constexpr (!Config::kCopies) unit = halve_query<Config>(p, q, largest);
    if constexpr (Config::kCopies) {
#pragma unroll
      for (std::uint32_t k = 0; k < 4; ++k) {
        const std::uint32_t at = to + query_word<Config>(row, word + k) + t * 4;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(q[k]) : "memory");
      }
    } else if constexpr (Config::kKeyInfo.bits == 4) {
      const std::uint32_t at = to + query_word<Config>(row, word + t);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(q[0]), "r"(q[1]), "r"(q[2]), "r"(q[3])
                   : "memory");
    } else {
#pragma unroll
      for (std::uint32_t half = 0; half < 2; ++half) {  // channels 4 t and 16 + 4 t of the chunk
        const std::uint32_t at = to + query_word<Config>(row, word + 2 * half + t / 2) + t % 2 * 8;
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(q[2 * half]), "r"(q[2 * half + 1]) : "memory");
      }
    }
    if (chunk == 0 && t == 0) exchange.factors[row] = factor * unit;
  });
  if constexpr (Config::kCopies) ptx::fence_shared_writes();
}

}  // namespace mpfa::sm90
