// The query rows of a block in shared memory, from where warps take them as A operands.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/query.cuh"
#include "cuda/sm90/verify/scales.cuh"

namespace mpfa::sm90 {

/// Byte offset of word `word` of 8 channels of a row of q, for matrix loads without bank conflicts.
__device__ __forceinline__ std::uint32_t query_word(std::int32_t row, std::uint32_t word, std::int32_t row_bytes) {
  return static_cast<std::uint32_t>(row * row_bytes) + (word ^ static_cast<std::uint32_t>(row) % 8) * 16;
}

/// The rows to shared memory as f16 in the order of expanded codes, with their factors.
template <class Config>
__device__ __forceinline__ void store_row_query(const DecodeParams& p, const Work& work, RawQuery<Config>& raw,
                                                const Exchange<Config>& exchange) {
  const std::uint32_t t = threadIdx.x % 4, to = ptx::shared_address(exchange.queries);
  const float factor = p.scale * kLog2E * Config::kKeyUnit * key_global(p, work.piece.head);
  for_query_parts<Config>([&](int i, int row, int chunk) {
    auto& q = raw.q[i];
    const float largest = round_query<Config>(p, work, row, chunk, q);
    const float unit = halve_query<Config>(p, q, largest);
    const auto word = static_cast<std::uint32_t>(chunk) * 4;
    if constexpr (Config::kKeyInfo.bits == 4) {
      const std::uint32_t at = to + query_word(row, word + t, Config::kD * 2);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(q[0]), "r"(q[1]), "r"(q[2]), "r"(q[3])
                   : "memory");
    } else {
#pragma unroll
      for (std::uint32_t half = 0; half < 2; ++half) {  // channels 4 t and 16 + 4 t of the chunk
        const std::uint32_t at = to + query_word(row, word + 2 * half + t / 2, Config::kD * 2) + t % 2 * 8;
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(q[2 * half]), "r"(q[2 * half + 1]) : "memory");
      }
    }
    if (chunk == 0 && t == 0) exchange.factors[row] = factor * unit;
  });
}

}  // namespace mpfa::sm90
