// What one warp does with a tile of 32 keys: copy its codes to shared memory, scores, probabilities, values.
//
// Scores are computed transposed: K is the A operand (rows = keys), the query rows of the KV head are the 8 columns.
// Values too: V^T is A (rows = channels), P is B. Row j of the 8x8 matrix (m, h) is key 16 m + 8 h + j. Codes keep
// their order inside 32 channels; q is permuted to it instead.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/decode/fp4/codes.cuh"
#include "cuda/sm90/decode/fp4/config.h"
#include "cuda/sm90/decode/fp4/schedule.cuh"

namespace mpfa::sm90 {

/// Byte offset of the 16 bytes (key, chunk) of a tile: no bank conflicts in copies and matrix loads.
template <class Config>
__device__ __forceinline__ std::uint32_t code_offset(std::uint32_t key, std::uint32_t chunk) {
  constexpr std::uint32_t kChunks = Config::kChunks;
  return (key * kChunks + (chunk ^ ((key / (8 / kChunks)) % kChunks))) * 16U;
}

/// Place of V's scale of a key: a thread reads those of rows 2 t and 2 t + 1 of all four matrices at once.
__device__ __forceinline__ std::uint32_t value_scale_place(std::uint32_t key) {
  return key % 8 / 2 * 8 + key / 8 * 2 + key % 2;
}

template <int kBytes>
struct Words;
template <>
struct Words<2> {
  using Type = std::uint16_t;
};
template <>
struct Words<4> {
  using Type = std::uint32_t;
};
template <>
struct Words<8> {
  using Type = uint2;
};
template <>
struct Words<16> {
  using Type = uint4;
};

/// Scales of one key as words.
template <class Config>
struct ScaleRow {
  static constexpr int kWords = (Config::kScaleBytes + 3) / 4;
  std::uint32_t w[kWords];
  __device__ __forceinline__ void load(const std::uint8_t* from) {
    using Type = typename Words<Config::kScaleBytes>::Type;
    const Type v = __ldg(reinterpret_cast<const Type*>(from));
    if constexpr (sizeof(Type) <= 4) {
      w[0] = v;
    } else {
      const auto* words = reinterpret_cast<const std::uint32_t*>(&v);
#pragma unroll
      for (int i = 0; i < kWords; ++i) w[i] = words[i];
    }
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) w[i] = 0;
  }
};

/// Page id and slot of a key.
struct Place {
  std::int32_t page, slot;
};

/// Where the keys of one (sequence, KV head) are. A tile inside one page with rows side by side is one place of the
/// whole warp; otherwise every lane follows key `lane` of the tile.
template <class Config>
class Pages {
 public:
  __device__ __forceinline__ explicit Pages(const DecodeParams& p) : p_(&p) {}

  __device__ __forceinline__ void enter(std::int32_t b, std::int32_t head, std::int32_t length) {
    const DecodeParams& p = *p_;
    table_ = p.page_table + b * p.page_table_stride;
    last_ = length - 1;
    const std::uint32_t lane = threadIdx.x % 32;
    const std::int32_t row = lane / Config::kChunks, scale_row = lane;
    k_ = p.k.data + head * p.k.data_head + lane % Config::kChunks * 16U;
    v_ = p.v.data + head * p.v.data_head + lane % Config::kChunks * 16U;
    k_scales_ = p.k.scales + head * p.k.scale_head;
    v_scales_ = p.v.scales + head * p.v.scale_head;
    if constexpr (Config::kPlain) {
      k_ += row * (Config::kD / 2);
      v_ += row * (Config::kD / 2);
      k_scales_ += scale_row * Config::kScaleBytes;
      v_scales_ += scale_row * Config::kScaleBytes;
    }
    ptx::keep_in_register(k_);
    ptx::keep_in_register(v_);
    ptx::keep_in_register(k_scales_);
    ptx::keep_in_register(v_scales_);
    ptx::keep_in_register(table_);
    copy_to_ = code_offset<Config>(lane / Config::kChunks, lane % Config::kChunks);
    ptx::keep_in_register(copy_to_);
  }

  /// Place of the tile that starts at key `first`; lanes past the length take the place of the last key.
  __device__ __forceinline__ Place locate(std::int32_t first) const {
    std::int32_t key = first;
    if constexpr (!Config::kPlain) key = min(first + static_cast<std::int32_t>(threadIdx.x % 32), last_);
    const auto page = static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(key), p_->page_div));
    return {__ldg(table_ + page), key - page * p_->page_size};
  }

  /// Codes of K and V to `stage`.
  __device__ __forceinline__ void copy_codes(std::uint32_t stage, Place place) const {
    constexpr std::uint32_t kChunks = Config::kChunks, kKeysPerCopy = 32 / kChunks;
    const std::uint32_t lane = threadIdx.x % 32;
    if constexpr (Config::kPlain) {
      const std::uint8_t* k =
          k_ + static_cast<std::int64_t>(place.page) * p_->k.data_page + place.slot * (Config::kD / 2);
      const std::uint8_t* v =
          v_ + static_cast<std::int64_t>(place.page) * p_->v.data_page + place.slot * (Config::kD / 2);
#pragma unroll
      for (std::uint32_t r = 0; r < kChunks; ++r) {
        // Keys of the first copy have every swizzle there is if a copy has 8 keys or more.
        const std::uint32_t to = kKeysPerCopy >= 8
                                     ? stage + copy_to_ + r * 512
                                     : stage + code_offset<Config>(lane / kChunks + r * kKeysPerCopy, lane % kChunks);
        ptx::copy_async16(to, k + r * 512);
        ptx::copy_async16(to + Config::kCodeBytes, v + r * 512);
      }
    } else {
#pragma unroll
      for (std::uint32_t r = 0; r < kChunks; ++r) {
        const std::uint32_t key = lane / kChunks + r * kKeysPerCopy;
        const std::int64_t page = __shfl_sync(0xFFFFFFFFU, place.page, key);
        const std::int32_t slot = __shfl_sync(0xFFFFFFFFU, place.slot, key);
        const std::uint32_t to = stage + code_offset<Config>(key, lane % kChunks);
        ptx::copy_async16(to, k_ + page * p_->k.data_page + static_cast<std::int64_t>(slot) * p_->k.data_row);
        ptx::copy_async16(to + Config::kCodeBytes,
                          v_ + page * p_->v.data_page + static_cast<std::int64_t>(slot) * p_->v.data_row);
      }
    }
  }

  /// Scales of key `lane`. Those past the length are whatever lies there.
  __device__ __forceinline__ void load_scales(Place place, ScaleRow<Config>& k, ScaleRow<Config>& v) const {
    const std::int64_t page = place.page;
    if constexpr (Config::kPlain) {
      k.load(k_scales_ + page * p_->k.scale_page + place.slot * Config::kScaleBytes);
      v.load(v_scales_ + page * p_->v.scale_page + place.slot * Config::kScaleBytes);
    } else {
      k.load(k_scales_ + page * p_->k.scale_page + static_cast<std::int64_t>(place.slot) * p_->k.scale_row);
      v.load(v_scales_ + page * p_->v.scale_page + static_cast<std::int64_t>(place.slot) * p_->v.scale_row);
    }
  }

 private:
  const DecodeParams* p_;
  const std::int32_t* table_;
  std::int32_t last_;
  std::uint32_t copy_to_;  // offset of the lane's first 16 bytes in a stage
  const std::uint8_t *k_, *v_, *k_scales_, *v_scales_;
};

/// What turns an accumulated score into a logit in the log2 domain, of columns 2 t and 2 t + 1.
template <class Config>
using Factors = float[Config::kRowTiles][2];

/// Softmax state of a warp. Sums are of the thread's own keys.
template <class Config>
struct State {
  float out[Config::kRowTiles][Config::kChunks][2]
           [4];  // channels 4 g + 2 i (0, 1) and + 1 (2, 3), columns 2 t, 2 t + 1
  float max[Config::kRowTiles][2], sum[Config::kRowTiles][2];
  std::uint32_t bias;  // mxfp4: stands for the e8m0 code of V that `out` is relative to, see scales.cuh
};

template <class Config>
using Scores = float[Config::kRowTiles][2][4];  // [m][h * 2 + column]

/// kCount words of shared memory.
template <int kCount>
__device__ __forceinline__ void load_words(std::uint32_t (&w)[kCount], std::uint32_t from) {
  static_assert(kCount == 2 || kCount == 4);
  if constexpr (kCount == 2) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(from));
  } else {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(from));
  }
}

/// Offset of the row of 16 bytes whose address a lane gives to a matrix load of chunks 0 and 1, keys 0 to 15. Chunks
/// c, c + 1: exclusive or with 16 c.
template <class Config>
__device__ __forceinline__ std::uint32_t matrix_row() {
  const std::uint32_t lane = threadIdx.x % 32;
  return code_offset<Config>(lane % 16, lane / 16);
}

/// x = q . K' of a tile, in units of the factor. queries: B operands [row tile][chunk][lane], 16 bytes each.
template <class Config>
__device__ __forceinline__ void score_tile(std::uint32_t codes, std::uint32_t matrix, std::uint32_t scales,
                                           std::uint32_t queries, Scores<Config>& x) {
  constexpr int kRowBytes = Config::kChunks * (Config::kMx ? 4 : 8);
  const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t row_scales = scales + g * kRowBytes + (Config::kMx ? 0 : t / 2 * Config::kChunks * 4);
#pragma unroll
  for (int i = 0; i < Config::kRowTiles * 8; ++i) x[i / 8][i / 4 % 2][i % 4] = 0.0F;
#pragma unroll
  for (int c = 0; c < Config::kChunks; c += 2) {
    std::uint32_t q[Config::kRowTiles][2][4];
#pragma unroll
    for (int i = 0; i < Config::kRowTiles * 2; ++i) {
      load_words(q[i / 2][i % 2], queries + (i / 2 * Config::kChunks + c + i % 2) * 512 + lane * 16);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      std::uint32_t scale[2][2];  // [row g, row g + 8][chunk]
      load_words(scale[0], row_scales + 16 * m * kRowBytes + c * 4);
      load_words(scale[1], row_scales + (16 * m + 8) * kRowBytes + c * 4);
      std::uint32_t w[4];
      ptx::load_matrices(w, codes + ((matrix ^ (c * 16)) + m * Config::kD * 8));
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        std::uint32_t a0[4], a1[4];
        expand_codes(w[2 * e], a0);
        expand_codes(w[2 * e + 1], a1);
        if constexpr (!Config::kMx) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            a0[i] = multiply_half2(a0[i], scale[0][e]);
            a1[i] = multiply_half2(a1[i], scale[1][e]);
          }
        }
#pragma unroll
        for (int n = 0; n < Config::kRowTiles; ++n) {
          const auto& b = q[n][e];
          if constexpr (Config::kMx) {
            float sum[4] = {0.0F, 0.0F, 0.0F, 0.0F};
            ptx::multiply_add(sum, a0[0], a1[0], a0[1], a1[1], b[0], b[1]);
            ptx::multiply_add(sum, a0[2], a1[2], a0[3], a1[3], b[2], b[3]);
#pragma unroll
            for (int i = 0; i < 4; ++i) x[n][m][i] = fmaf(sum[i], __uint_as_float(scale[i / 2][e]), x[n][m][i]);
          } else {
            ptx::multiply_add(x[n][m], a0[0], a1[0], a0[1], a1[1], b[0], b[1]);
            ptx::multiply_add(x[n][m], a0[2], a1[2], a0[3], a1[3], b[2], b[3]);
          }
        }
      }
    }
  }
}

/// out += P V of a tile. p [n][m][h]: pairs of f16 (columns 2 t, 2 t + 1) of the key of row g.
template <class Config>
__device__ __forceinline__ void add_values(std::uint32_t codes, std::uint32_t matrix, std::uint32_t scales,
                                           const std::uint32_t (&p)[Config::kRowTiles][2][2], State<Config>& state) {
  const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  std::uint32_t b[Config::kRowTiles][2][2];
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) b[n][i / 2][i % 2] = ptx::transpose_matrix(p[n][i / 2][i % 2]);
  }
#pragma unroll
  for (int c = 0; c < Config::kChunks; c += 2) {
    // Scales of the thread's 8 keys (pairs m, h) for its block of chunks c and c + 1.
    std::uint32_t scale[2][4];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const std::uint32_t block = Config::kMx ? c + e : 2 * (c + e) + g / 4;
      load_words(scale[e], scales + block * kTileKeys * 2 + t * 16);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      std::uint32_t w[4];
      ptx::load_matrices_transposed(w, codes + ((matrix ^ (c * 16)) + m * Config::kD * 8));
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        std::uint32_t a0[4], a1[4];  // keys of h = 0 and h = 1; index = channel 4 g + i
        expand_codes(w[2 * e], a0);
        expand_codes(w[2 * e + 1], a1);
        if constexpr (!Config::kMx) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            a0[i] = multiply_half2(a0[i], scale[e][2 * m]);
            a1[i] = multiply_half2(a1[i], scale[e][2 * m + 1]);
          }
        }
#pragma unroll
        for (int n = 0; n < Config::kRowTiles; ++n) {
          std::uint32_t b0 = b[n][m][0], b1 = b[n][m][1];
          if constexpr (Config::kMx) {
            b0 = multiply_half2(b0, scale[e][2 * m]);
            b1 = multiply_half2(b1, scale[e][2 * m + 1]);
          }
          ptx::multiply_add(state.out[n][c + e][0], a0[0], a0[1], a1[0], a1[1], b0, b1);
          ptx::multiply_add(state.out[n][c + e][1], a0[2], a0[3], a1[2], a1[3], b0, b1);
        }
      }
    }
  }
}

}  // namespace mpfa::sm90
