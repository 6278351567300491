// Mask tensors of the verify kernel. The part of a mask that belongs to a tile comes with its codes:
// every warp copies that of its 16 keys, elements as they are, for as many rows of the tensor as the block's rows have.
// Most tiles of a tree mask hide nothing and add nothing, which a warp sees by a look at what it has copied itself.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/mask.cuh"
#include "cuda/sm90/verify/softmax.cuh"

namespace mpfa::sm90 {

/// Rows of the mask tensor that the rows of a block have: a row each, or a token each if all heads have the same.
template <class Config>
struct MaskRows {
  std::int32_t first, count;  // row of the KV head, or token
  bool shared;                // by heads

  __device__ __forceinline__ MaskRows(const DecodeParams& p, const Work& work) : shared(p.mask.head == 0) {
    const std::int32_t row0 = work.piece.row_block * Config::kRows;
    const std::int32_t last = max(min(row0 + Config::kRows, work.sequence.sq * p.group) - 1, row0);
    first = shared ? token(p, row0) : row0;
    count = (shared ? token(p, last) : last) - first + 1;
  }
  /// Of row `row` of the block.
  __device__ __forceinline__ std::int32_t operator()(const DecodeParams& p, std::int32_t row0, int row) const {
    return min(shared ? token(p, row0 + row) - first : row, count - 1);
  }
  __device__ __forceinline__ static std::int32_t token(const DecodeParams& p, std::int32_t row) {
    return static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(row), p.group_div));
  }
};

/// Slopes and positions of the rows of the piece's block to `rows` [kRows], and where the rows of the mask begin.
template <class Config>
__device__ __forceinline__ void load_group_biases(const DecodeParams& p, const Work& work, RowBias* rows) {
  const Sequence& s = work.sequence;
  const MaskRows<Config> of_mask(p, work);
  const std::int32_t row0 = work.piece.row_block * Config::kRows, last = max(s.sq * p.group - 1, 0);
  for (int i = threadIdx.x % Config::kThreads; i < Config::kRows; i += Config::kThreads) {
    const RowPlace row = place_row(p, work.piece.head, min(row0 + i, last));
    const RowPlace part =
        of_mask.shared ? RowPlace{min(of_mask.first + i, max(s.sq - 1, 0)), work.piece.head * p.group} : row;
    rows[i].mask = p.mask.data + work.piece.b * p.mask.batch + part.head * p.mask.head + part.token * p.mask.row;
    rows[i].slope = p.alibi_slopes == nullptr ? 0.0F : p.alibi_slopes[row.head] * kLog2E;
    rows[i].position = row.token + s.length - s.sq;
  }
}

/// What a stage has of the mask tensor.
template <class Config>
class TileMask {
  // Rows of the tensor by 8 that are copied and looked at without a loop: 16 queries whose heads have the same mask.
  static constexpr int kFew = 2;
  static constexpr bool kAhead = Config::kRowTiles > 4;  // there are registers for what is asked for early

 public:
  __device__ __forceinline__ explicit TileMask(const DecodeParams& p) : p_(&p) {}

  __device__ __forceinline__ void enter(const Work& work, const RowBias* rows) {
    rows_ = ptx::shared_address(rows);
    count_ = __reduce_max_sync(0xFFFFFFFFU, MaskRows<Config>(*p_, work).count);
  }

  /// Where the rows of the lane's first quads begin, kAhead.
  struct Begins {
    const std::uint8_t* row[kFew];
  };
  __device__ __forceinline__ Begins begins() const {
    Begins b{};
#pragma unroll
    for (int i = 0; i < kFew && kAhead; ++i) b.row[i] = row_begin(8 * i + threadIdx.x % 32 / 4);
    return b;
  }
  /// Starts the copies of the warp's keys of a tile, the first of which is `first`; nothing is read from key `end` on.
  __device__ __forceinline__ void copy(const Begins& b, std::uint32_t stage, std::int32_t first,
                                       std::int32_t end) const {
    if (p_->mask.data == nullptr) return;
    const std::uint32_t to = stage + warp_at();
    if (p_->mask.quads == 0) {
      copy_elements(to, first, end);
    } else if (p_->mask.additive != 0) {
      copy_quads<4>(b, to, first, end);
    } else {
      copy_quads<1>(b, to, first, end);
    }
  }

  /// What a lane has copied of the first rows, kAhead.
  struct Quads {
    uint4 w[kFew];  // of a boolean mask the first words
  };
  __device__ __forceinline__ Quads load_ahead(std::uint32_t stage) const {
    return kAhead ? load_quads(stage) : Quads{};
  }
  /// Whether a lane has copied an element that hides its key from a row, or adds to it.
  __device__ __forceinline__ bool acts(const Quads& ahead, std::uint32_t stage) const {
    if (p_->mask.data == nullptr) return false;
    const Quads q = kAhead ? ahead : load_quads(stage);
    std::uint32_t found = 0;
    if (p_->mask.additive != 0) {
#pragma unroll
      for (int i = 0; i < kFew; ++i) found |= added(q.w[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kFew; ++i) found |= zero_bytes(q.w[i].x);
    }
    const std::uint32_t at = stage + warp_at();
#pragma unroll 1
    for (int i = kFew; i < Config::kRowTiles && 8 * i < count_; ++i) {
      found |= p_->mask.additive != 0 ? added(ptx::load_shared_words(at + own_quad<4>() + i * 32 * 16))
                                      : zero_bytes(load_word(at + own_quad<1>() + i * 32 * 4));
    }
    return found != 0;
  }

  /// Hides scores of the warp's keys from rows, or adds to logits.
  __device__ __forceinline__ void apply(const Work& work, std::uint32_t stage, float (&x)[Config::kScores]) const {
    if (p_->mask.additive != 0) {
      apply<true>(work, stage, x);
    } else {
      apply<false>(work, stage, x);
    }
  }

  /// Whether a row of the block may see key `key` of the tile.
  __device__ __forceinline__ bool shows(const Work& work, std::uint32_t stage, int row, std::int32_t key) const {
    if (p_->mask.data == nullptr) return true;
    const MaskRows<Config> rows(*p_, work);
    const std::uint32_t m = rows(*p_, work.piece.row_block * Config::kRows, row), own = key % kVerifyPage;
    const std::uint32_t at = stage + Config::kMaskAt + key / kVerifyPage * kWarpBytes;
    if (p_->mask.additive != 0) return load<true>(at + place<4>(m, own / 4) + own % 4 * 4) != kMinusInfinity;
    return load<false>(at + place<1>(m, own / 4) + own % 4) != 0;
  }

 private:
  __device__ __forceinline__ Quads load_quads(std::uint32_t stage) const {
    Quads q{};
    if (p_->mask.data == nullptr) return q;
    const std::uint32_t at = stage + warp_at();
    if (p_->mask.additive != 0) {
#pragma unroll
      for (int i = 0; i < kFew; ++i) q.w[i] = ptx::load_shared_words(at + own_quad<4>() + i * 32 * 16);
    } else {
#pragma unroll
      for (int i = 0; i < kFew; ++i) q.w[i].x = load_word(at + own_quad<1>() + i * 32 * 4);
    }
    return q;
  }
  __device__ __forceinline__ static std::uint32_t added(uint4 w) {
    return (w.x | w.y | w.z | w.w) << 1;  // but for signs of zeros
  }
  __device__ __forceinline__ static std::uint32_t zero_bytes(std::uint32_t w) {
    return (w - 0x01010101U) & ~w & 0x80808080U;
  }
  __device__ __forceinline__ static std::uint32_t load_word(std::uint32_t at) {
    std::uint32_t w;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w) : "r"(at) : "memory");
    return w;
  }

  static constexpr std::uint32_t kWarpBytes = Config::kRows * kVerifyPage * 4, kMinusInfinity = 0xFF800000U;

  __device__ __forceinline__ static std::uint32_t warp_at() {
    return Config::kMaskAt + threadIdx.x / 32 % 4 * kWarpBytes;
  }
  /// Byte offset of four elements side by side of row m, without bank conflicts where lanes read every second row.
  template <std::uint32_t kBytes>
  __device__ __forceinline__ static std::uint32_t place(std::uint32_t m, std::uint32_t quad) {
    return (m / 2 * 8 + ((m % 2 * 4 + quad) ^ (m / 2 % 4 * 2))) * 4 * kBytes;
  }
  /// Of lane / 4's row and the lane's quad; eight rows further on are 32 quads.
  template <std::uint32_t kBytes>
  __device__ __forceinline__ static std::uint32_t own_quad() {
    return place<kBytes>(threadIdx.x % 32 / 4, threadIdx.x % 4);
  }
  __device__ __forceinline__ const std::uint8_t* row_begin(std::uint32_t m) const {
    const std::uint8_t* begin;
    asm volatile("ld.shared.u64 %0, [%1];"
                 : "=l"(begin)
                 : "r"(rows_ + m * static_cast<std::uint32_t>(sizeof(RowBias)))
                 : "memory");
    return begin;
  }
  template <bool kAdditive>
  __device__ __forceinline__ static std::uint32_t load(std::uint32_t at) {
    if constexpr (kAdditive) return load_word(at);
    std::uint16_t byte;
    asm volatile("ld.shared.u8 %0, [%1];" : "=h"(byte) : "r"(at) : "memory");
    return byte;
  }

  template <std::uint32_t kBytes>
  __device__ __forceinline__ void copy_quads(const Begins& b, std::uint32_t to, std::int32_t first,
                                             std::int32_t end) const {
    const std::int32_t key = first + static_cast<std::int32_t>(threadIdx.x % 4 * 4);
    const std::int32_t bytes = min(max(end - key, 0), 4) * static_cast<std::int32_t>(kBytes);
    const auto copy = [&](int i, const std::uint8_t* row) {
      ptx::copy_async_part4<4 * kBytes>(to + own_quad<kBytes>() + i * 32 * 4 * kBytes,
                                        ptx::multiply_add_wide(key, kBytes, row), bytes);
    };
#pragma unroll
    for (int i = 0; i < kFew; ++i) copy(i, kAhead ? b.row[i] : row_begin(8 * i + threadIdx.x % 32 / 4));
#pragma unroll 1
    for (int i = kFew; i < Config::kRowTiles && 8 * i < count_; ++i) {
      copy(i, row_begin(8 * i + threadIdx.x % 32 / 4));
    }
  }
  /// Elements that lie in any way; lanes have two rows of 16 keys, kBatch times.
  __device__ __forceinline__ void copy_elements(std::uint32_t to, std::int32_t first, std::int32_t end) const {
    constexpr std::uint32_t kBatch = 4;  // loads that are in flight together
    const std::uint32_t lane = threadIdx.x % 32, own = lane % kVerifyPage;
    const std::int32_t key = min(first + static_cast<std::int32_t>(own), end - 1);
#pragma unroll 1
    for (std::uint32_t m0 = lane / kVerifyPage; static_cast<std::int32_t>(m0 / 8 * 8) < count_; m0 += 2 * kBatch) {
      std::uint16_t bytes[kBatch];
#pragma unroll
      for (std::uint32_t k = 0; k < kBatch; ++k) {
        const std::uint8_t* from = ptx::multiply_add_wide(key, p_->mask.key, row_begin(m0 + 2 * k));
        if (p_->mask.additive != 0) {
          ptx::copy_async_part4<4>(to + place<4>(m0 + 2 * k, own / 4) + own % 4 * 4, from, 4);
        } else {
          bytes[k] = __ldg(from);
        }
      }
      if (p_->mask.additive != 0) continue;
#pragma unroll
      for (std::uint32_t k = 0; k < kBatch; ++k) {
        const std::uint32_t at = to + place<1>(m0 + 2 * k, own / 4) + own % 4;
        asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "h"(bytes[k]) : "memory");
      }
    }
  }

  template <bool kAdditive>
  __device__ __forceinline__ void apply(const Work& work, std::uint32_t stage, float (&x)[Config::kScores]) const {
    constexpr std::uint32_t kBytes = kAdditive ? 4 : 1;
    const MaskRows<Config> rows(*p_, work);
    const std::int32_t row0 = work.piece.row_block * Config::kRows;
    const bool alike = rows.shared && p_->group % 2 == 0;  // both columns of a thread are of one token
    const std::uint32_t g = threadIdx.x % 32 / 4, at = stage + warp_at() + g % 4 * kBytes;
#pragma unroll
    for (int n = 0; n < Config::kRowTiles; ++n) {
      std::uint32_t bits[2][2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (j == 0 || !alike) {
          const std::uint32_t from = at + place<kBytes>(rows(*p_, row0, column_row(n, j)), g / 4);
          bits[j][0] = load<kAdditive>(from), bits[j][1] = load<kAdditive>(from ^ 8 * kBytes);  // key g + 8
        } else {
          bits[1][0] = bits[0][0], bits[1][1] = bits[0][1];
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& logit = x[n * 4 + k];
        logit = masked_logit<kAdditive>(bits[k % 2][k / 2], logit);
      }
    }
  }

  const DecodeParams* p_;
  std::uint32_t rows_;
  std::int32_t count_;
};

}  // namespace mpfa::sm90
