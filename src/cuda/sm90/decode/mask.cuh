// From scores to masked logits in the general kernel, in the order of the contract: softcap, ALiBi, mask tensor. Causal
// mask and windows, which every kernel has, are mask_scores.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/merge.cuh"
#include "cuda/sm90/decode/softmax.cuh"

namespace mpfa::sm90 {

// A finite number of a mask stays finite in the log2 domain, above the maximum of a row that has seen no key.
inline constexpr float kLeastBias = -3e38F;

/// The rows of the piece's block to `rows` [kRows].
template <class Config>
__device__ __forceinline__ void load_row_biases(const DecodeParams& p, const Work& work, RowBias* rows) {
  if (p.alibi_slopes == nullptr && p.mask.data == nullptr) return;
  const Sequence& s = work.sequence;
  for (int i = threadIdx.x; i < Config::kRows; i += Config::kThreads) {
    const RowPlace row =
        place_row(p, work.piece.head, min(work.piece.row_block * Config::kRows + i, s.sq * p.group - 1));
    rows[i].mask = p.mask.data + work.piece.b * p.mask.batch + row.head * p.mask.head + row.token * p.mask.row;
    rows[i].slope = p.alibi_slopes == nullptr ? 0.0F : p.alibi_slopes[row.head] * kLog2E;
    rows[i].position = row.token + s.length - s.sq;
  }
}

/// Fetches the tile's part of the mask tensor to the second-level cache, while the scores are computed.
template <class Config>
__device__ __forceinline__ void prefetch_mask(const DecodeParams& p, const RowBias* rows, std::int32_t first) {
  const auto row = static_cast<std::int32_t>(threadIdx.x % 32);
  if (row < Config::kRows) ptx::prefetch(rows[row].mask + static_cast<std::int64_t>(first) * p.mask.key);
}

/// softcap * tanh(logit / softcap) in the log2 domain; `shift` is what centring K took out of the logit.
__device__ __forceinline__ float capped_logit(float softcap, float shift, float logit) {
  const float y = fmaf(shift, kLog2E, logit);
  // tanh(y) = 1 - 2 / (exp(2 y) + 1)
  return softcap * kLog2E * (1.0F - __fdividef(2.0F, ptx::exp2_fast(y * (2.0F / softcap)) + 1.0F));
}

/// Of true logits: `shift` [rows].
template <class Config>
__device__ __forceinline__ void cap_logits(const DecodeParams& p, const float* shift, Scores<Config>& x) {
#pragma unroll
  for (int k = 0; k < Config::kRowTiles * 8; ++k) {
    float& logit = x[k / 8][k / 4 % 2][k % 4];
    logit = capped_logit(p.softcap, shift[column_row(k / 8, k % 2)], logit);
  }
}

template <class Config>
__device__ __forceinline__ void add_alibi(const RowBias* rows, std::int32_t first, Scores<Config>& x) {
  const std::int32_t key = first + static_cast<std::int32_t>(threadIdx.x % 32 / 4);
#pragma unroll
  for (int k = 0; k < Config::kRowTiles * 8; ++k) {
    const int n = k / 8, j = k / 4 % 2, i = k % 4;
    const RowBias& row = rows[column_row(n, j)];
    float& logit = x[n][i / 2][i % 2 * 2 + j];
    logit = fmaf(-row.slope, static_cast<float>(abs(row.position - key - 8 * i)), logit);
  }
}

/// An element of a mask tensor, as bits.
template <bool kAdditive>
__device__ __forceinline__ std::uint32_t load_mask(const std::uint8_t* at) {
  return kAdditive ? __ldg(reinterpret_cast<const std::uint32_t*>(at)) : __ldg(at);
}

/// A logit under an element of the mask: by selection, since adding -inf would not remove a NaN.
template <bool kAdditive>
__device__ __forceinline__ float masked_logit(std::uint32_t bits, float logit) {
  if constexpr (!kAdditive) return bits == 0 ? -INFINITY : logit;
  const float bias = __uint_as_float(bits), scaled = bias * kLog2E;
  return bias == -INFINITY ? -INFINITY : logit + (scaled < kLeastBias ? kLeastBias : scaled);
}

/// Keys from `end` on, the last one of the sequence, are not read.
template <class Config, bool kAdditive>
__device__ __forceinline__ void add_mask(const DecodeParams& p, const RowBias* rows, std::int32_t first,
                                         std::int32_t end, Scores<Config>& x) {
  const std::int32_t key = first + static_cast<std::int32_t>(threadIdx.x % 32 / 4);
  const bool alike = p.mask.head == 0 && p.group % 2 == 0;  // both columns of a thread are of one token
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
    std::uint32_t bits[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (j == 0 || !alike) {
        const std::uint8_t* row = rows[column_row(n, j)].mask;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::uint8_t* at = row + static_cast<std::int64_t>(min(key + 8 * i, end - 1)) * p.mask.key;
          bits[j][i] = load_mask<kAdditive>(at);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) bits[1][i] = bits[0][i];
      }
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int j = k / 4, i = k % 4;
      float& logit = x[n][i / 2][i % 2 * 2 + j];
      logit = masked_logit<kAdditive>(bits[j][i], logit);
    }
  }
}

/// One logit in the log2 domain with ALiBi and the mask tensor, -inf where that hides the key.
__device__ __forceinline__ float biased_logit(const DecodeParams& p, const RowBias& row, std::int32_t key,
                                              float logit) {
  if (p.alibi_slopes != nullptr) logit = fmaf(-row.slope, static_cast<float>(abs(row.position - key)), logit);
  if (p.mask.data == nullptr) return logit;
  const std::uint8_t* at = row.mask + static_cast<std::int64_t>(key) * p.mask.key;
  if (p.mask.additive) return masked_logit<true>(load_mask<true>(at), logit);
  return masked_logit<false>(load_mask<false>(at), logit);
}

/// Scores become logits in the log2 domain, -inf where the mask tensor hides a key.
template <class Config>
__device__ __forceinline__ void finish_logits(const DecodeParams& p, const Exchange<Config>& exchange,
                                              const Sequence& s, std::int32_t first, Scores<Config>& x) {
#pragma unroll
  for (int k = 0; k < Config::kRowTiles * 8; ++k) {
    x[k / 8][k / 4 % 2][k % 4] *= exchange.factors[column_row(k / 8, k % 2)];
  }
  if (p.softcap > 0.0F) cap_logits<Config>(p, exchange.row_shift, x);
  if (p.alibi_slopes != nullptr) add_alibi<Config>(exchange.row_bias, first, x);
  if (p.mask.data == nullptr) return;
  if (p.mask.additive) {
    add_mask<Config, true>(p, exchange.row_bias, first, s.end, x);
  } else {
    add_mask<Config, false>(p, exchange.row_bias, first, s.end, x);
  }
}

}  // namespace mpfa::sm90
