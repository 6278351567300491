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

/// The rows to shared memory as f16 in the order of expanded codes, with their factors.
template <class Config>
__device__ __forceinline__ void store_row_query(const DecodeParams& p, const Work& work, RawQuery<Config>& raw,
                                                const Exchange<Config>& exchange) {
  const std::uint32_t t = threadIdx.x % 4, to = ptx::shared_address(exchange.queries);
  const float factor = p.scale * kLog2E * Config::kKeyUnit * key_global(p, work.piece.head);
  for_query_parts<Config>([&](int i, int row, int chunk) {
    auto& q = raw.q[i];
    const float largest = round_query<Config>(p, work, row, chunk, q);
    const auto word = static_cast<std::uint32_t>(chunk) * 4;
    const float unit = halve_query<Config>(p, q, largest);
    if constexpr (Config::kKeyInfo.bits == 4) {
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
}

/// Calls f(row of the block, chunk of 16 bytes) for the thread's chunks beside K in 16 bits.
template <class Config, class F>
__device__ __forceinline__ void for_query_chunks(F&& f) {
  constexpr std::int32_t kRowChunks = Config::kD / 8;
#pragma unroll 1
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < Config::kRows * kRowChunks; i += Config::kThreads) {
    f(i / kRowChunks, static_cast<std::uint32_t>(i % kRowChunks));
  }
}
/// Starts to copy the rows to shared memory, as they are; those that do not exist are zero.
template <class Config>
__device__ __forceinline__ void copy_row_query(const DecodeParams& p, const Work& work,
                                               const Exchange<Config>& exchange) {
  const std::uint32_t to = ptx::shared_address(exchange.queries);
  const std::int32_t rows = work.sequence.sq * p.group;
  for_query_chunks<Config>([&](std::int32_t row, std::uint32_t chunk) {
    const std::int32_t r = work.piece.row_block * Config::kRows + row;
    const RowPlace place = place_row(p, work.piece.head, min(r, rows - 1));
    const auto* from =
        static_cast<const std::uint16_t*>(p.q) + q_offset(p, work.sequence, work.piece.b, place) + chunk * 8;
    ptx::copy_async_part<true>(to + query_word<Config>(row, chunk), from, r < rows ? 16 : 0);
  });
  ptx::commit_copies();
}
/// The end of copy_row_query: rows in bf16, and their factors.
template <class Config>
__device__ __forceinline__ void finish_row_query(const DecodeParams& p, const Work& work,
                                                 const Exchange<Config>& exchange) {
  const std::uint32_t to = ptx::shared_address(exchange.queries);
  ptx::wait_copies<0>();
  if (p.round_q_bf16 != 0) {
    for_query_chunks<Config>([&](std::int32_t row, std::uint32_t chunk) {
      const std::uint32_t at = to + query_word<Config>(row, chunk);
      const uint4 w = ptx::load_shared_words(at);
      std::uint32_t q[4] = {w.x, w.y, w.z, w.w};
      round_to_bf16(q);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(q[0]), "r"(q[1]), "r"(q[2]), "r"(q[3])
                   : "memory");
    });
  }
  const auto row = static_cast<std::int32_t>(threadIdx.x);
  if (row < Config::kRows) exchange.factors[row] = p.scale * kLog2E * key_global(p, work.piece.head);
  ptx::fence_shared_writes();
}

}  // namespace mpfa::sm90
