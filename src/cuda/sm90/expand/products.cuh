// The two products of a warpgroup with a tile of K and V. q is the A operand of the first, from registers or, beside 16
// bits, from shared memory; P is that of the second as it comes out of the first.
#pragma once

#include <cstdint>

#include "cuda/sm90/expand/mma.cuh"
#include "cuda/sm90/expand/query.cuh"

namespace mpfa::sm90 {

/// The 64 query rows of a warpgroup.
template <class Config>
class RowQuery {
 public:
  /// row0: the warpgroup's first row of the block's.
  __device__ __forceinline__ RowQuery(const Exchange<Config>& exchange, std::int32_t row0) {
    const std::uint32_t at = ptx::shared_address(exchange.queries), lane = threadIdx.x % 32;
    if constexpr (Config::kCopies) {
      shared_ = ptx::keys_descriptor(ptx::same_in_warp(at + query_word<Config>(row0, 0)));
    } else {
      const auto row = row0 + static_cast<std::int32_t>(threadIdx.x / 32 % 4 * 16 + lane % 16);
#pragma unroll
      for (std::uint32_t k = 0; k < Config::kD / 16; ++k) {
        ptx::load_matrices(q_[k], at + query_word<Config>(row, 2 * k + lane / 16));
      }
    }
  }
  /// Starts the scores of a tile of K.
  __device__ __forceinline__ void start_scores(std::uint64_t keys, float (&x)[Config::kRowScores]) const {
    ptx::fence_mma();
#pragma unroll
    for (int k = 0; k < Config::kD / 16; ++k) {
      const std::uint64_t b = keys + k / 4 * (Config::kPartBytes / 16) + k % 4 * 2;
      if constexpr (Config::kCopies) {
        ptx::multiply_shared_bf16(x, shared_ + k / 4 * (Config::kRows * 128 / 16) + k % 4 * 2, b, k > 0 ? 1 : 0);
      } else {
        ptx::multiply_async(x, q_[k], b, k > 0 ? 1 : 0);
      }
    }
    ptx::commit_mma();
  }

 private:
  std::uint64_t shared_;
  std::uint32_t q_[Config::kCopies ? 1 : Config::kD / 16][4];
};

/// Starts to add P times a tile of V to the outputs. pairs: P of keys [n][row g, g + 8].
template <class Config>
__device__ __forceinline__ void start_outputs(std::uint64_t values,
                                              const std::uint32_t (&pairs)[Config::kRowScores / 4][2],
                                              float (&out)[Config::kD / 2]) {
  ptx::pin(out);
  ptx::fence_mma();
#pragma unroll
  for (int k = 0; k < Config::kKeys / 16; ++k) {
    const std::uint32_t a[4] = {pairs[2 * k][0], pairs[2 * k][1], pairs[2 * k + 1][0], pairs[2 * k + 1][1]};
    if constexpr (Config::kCopies) {
      ptx::multiply_wide_bf16(out, a, values + k * (16 * 128 / 16));
    } else {
      ptx::multiply_wide_async(out, a, values + k * (16 * 128 / 16));
    }
  }
  ptx::commit_mma();
}

}  // namespace mpfa::sm90
