#include "cpu/nibble_ops.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/nibble_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The lookup needs vectors of at least 8 floats.
#define MPFA_HAVE_NIBBLES (HWY_MAX_BYTES >= 32 && HWY_TARGET != HWY_SCALAR)

#if MPFA_HAVE_NIBBLES
constexpr int kRowsAtOnce = HWY_TARGET <= HWY_AVX3 ? 4 : 2;  // accumulators that fit the register file

/// The 16 element values as lookup tables of a vector of kLanes floats.
template <std::size_t kLanes>
class Table {
 public:
  using D = hn::CappedTag<float, kLanes>;
  using DU = hn::RebindToUnsigned<D>;

  explicit Table(const float* values) : low_(hn::LoadU(D(), values)), high_(hn::LoadU(D(), values + 16 - kLanes)) {}

  /// Elements of the lowest nibble of every word.
  HWY_INLINE hn::Vec<D> operator()(hn::Vec<DU> words) const {
    const D d;
    const DU du;
    const auto low = hn::TableLookupLanes(low_, hn::IndicesFromVec(d, hn::And(words, hn::Set(du, kLanes - 1))));
    if constexpr (kLanes == 16) return low;
    const auto high = hn::TableLookupLanes(high_, hn::IndicesFromVec(d, hn::And(words, hn::Set(du, kLanes - 1))));
    return hn::IfNegativeThenElse(hn::BitCast(d, hn::ShiftLeft<28>(words)), high, low);
  }

 private:
  hn::Vec<D> low_, high_;
};

/// Indices that spread the factors of a chunk of words over its lanes.
template <std::size_t kLanes>
HWY_INLINE auto spread_indices(std::int64_t block_words) {
  const hn::CappedTag<float, kLanes> d;
  HWY_ALIGN std::int32_t lane[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) {
    lane[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) / block_words);
  }
  return hn::SetTableIndices(d, lane);
}

/// Factor of every lane of chunk `first_word` of a row.
template <std::size_t kLanes, class Indices>
HWY_INLINE auto spread(const NibbleRows& x, std::int64_t key, std::int64_t first_word, const Indices& indices) {
  const hn::CappedTag<float, kLanes> d;
  const std::int64_t blocks = x.words / x.block_words;
  const float* row = x.factors + key * blocks + first_word / x.block_words;
  if (x.block_words >= static_cast<std::int64_t>(kLanes)) return hn::Set(d, *row);
  return hn::TableLookupLanes(hn::LoadU(d, row), indices);  // factors are padded: kFactorPadding
}

template <std::size_t kLanes, int kRows, int kKeys>
HWY_INLINE void score_block(const NibbleRows& k, std::int64_t key, const Table<kLanes>& table, const float* q, float* s,
                            std::int64_t s_stride) {
  const hn::CappedTag<float, kLanes> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto indices = spread_indices<kLanes>(k.block_words);
  hn::Vec<decltype(d)> total[kRows][kKeys];
  for (auto& row : total) {
    for (auto& t : row) t = hn::Zero(d);
  }
  for (std::int64_t w = 0; w < k.words; w += kLanes) {
    hn::Vec<decltype(du)> words[kKeys];
    hn::Vec<decltype(d)> acc[kRows][kKeys];
    for (int j = 0; j < kKeys; ++j) {
      words[j] = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(k.codes + (key + j) * k.row_stride) + w);
      for (int r = 0; r < kRows; ++r) acc[r][j] = hn::Zero(d);
    }
    for (int n = 0; n < 8; ++n) {
      hn::Vec<decltype(d)> element[kKeys];
      for (int j = 0; j < kKeys; ++j) {
        element[j] = table(words[j]);
        words[j] = hn::ShiftRight<4>(words[j]);
      }
      for (int r = 0; r < kRows; ++r) {
        const auto x = hn::LoadU(d, q + (r * 8 + n) * k.words + w);
        for (int j = 0; j < kKeys; ++j) acc[r][j] = hn::MulAdd(x, element[j], acc[r][j]);
      }
    }
    for (int j = 0; j < kKeys; ++j) {
      const auto factor = spread<kLanes>(k, key + j, w, indices);
      for (int r = 0; r < kRows; ++r) total[r][j] = hn::MulAdd(acc[r][j], factor, total[r][j]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kKeys; ++j) s[r * s_stride + key + j] = hn::GetLane(hn::SumOfLanes(d, total[r][j]));
  }
}

template <std::size_t kLanes, int kRows>
void score_rows(const NibbleRows& k, std::int64_t keys, const float* q, float* s, std::int64_t s_stride) {
  const Table<kLanes> table(k.table);
  constexpr int kKeys = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
  std::int64_t j = 0;
  for (; j + kKeys <= keys; j += kKeys) score_block<kLanes, kRows, kKeys>(k, j, table, q, s, s_stride);
  for (; j < keys; ++j) score_block<kLanes, kRows, 1>(k, j, table, q, s, s_stride);
}

template <std::size_t kLanes, int kRows>
void accumulate_rows(const NibbleRows& v, std::int64_t keys, const float* p, std::int64_t p_stride, float* o,
                     std::int64_t o_stride) {
  constexpr int kNibbles = 4;  // half of a word at a time: kRows * kNibbles accumulators stay in registers
  const hn::CappedTag<float, kLanes> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const Table<kLanes> table(v.table);
  const auto indices = spread_indices<kLanes>(v.block_words);
  for (std::int64_t w = 0; w < v.words; w += kLanes) {
    for (int half = 0; half < 8; half += kNibbles) {
      hn::Vec<decltype(d)> acc[kRows][kNibbles];
      for (int r = 0; r < kRows; ++r) {
        for (int n = 0; n < kNibbles; ++n) acc[r][n] = hn::LoadU(d, o + r * o_stride + (half + n) * v.words + w);
      }
      for (std::int64_t j = 0; j < keys; ++j) {
        auto words = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(v.codes + j * v.row_stride) + w);
        if (half != 0) words = hn::ShiftRight<16>(words);
        const auto factor = spread<kLanes>(v, j, w, indices);
        hn::Vec<decltype(d)> weight[kRows];
        for (int r = 0; r < kRows; ++r) weight[r] = hn::Mul(hn::Set(d, p[r * p_stride + j]), factor);
        for (int n = 0; n < kNibbles; ++n) {
          const auto element = table(words);
          words = hn::ShiftRight<4>(words);
          for (int r = 0; r < kRows; ++r) acc[r][n] = hn::MulAdd(weight[r], element, acc[r][n]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int n = 0; n < kNibbles; ++n) hn::StoreU(acc[r][n], d, o + r * o_stride + (half + n) * v.words + w);
      }
    }
  }
}

template <std::size_t kLanes>
void score_all(const NibbleRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s,
               std::int64_t s_stride) {
  std::int64_t r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) {
    score_rows<kLanes, kRowsAtOnce>(k, keys, q + r * 8 * k.words, s + r * s_stride, s_stride);
  }
  if (rows - r >= 2) {
    score_rows<kLanes, 2>(k, keys, q + r * 8 * k.words, s + r * s_stride, s_stride);
    r += 2;
  }
  if (r < rows) score_rows<kLanes, 1>(k, keys, q + r * 8 * k.words, s + r * s_stride, s_stride);
}

template <std::size_t kLanes>
void accumulate_all(const NibbleRows& v, std::int64_t keys, std::int64_t rows, const float* p, std::int64_t p_stride,
                    float* o, std::int64_t o_stride) {
  std::int64_t r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) {
    accumulate_rows<kLanes, kRowsAtOnce>(v, keys, p + r * p_stride, p_stride, o + r * o_stride, o_stride);
  }
  if (rows - r >= 2) {
    accumulate_rows<kLanes, 2>(v, keys, p + r * p_stride, p_stride, o + r * o_stride, o_stride);
    r += 2;
  }
  if (r < rows) accumulate_rows<kLanes, 1>(v, keys, p + r * p_stride, p_stride, o + r * o_stride, o_stride);
}

constexpr bool kWideVectors = hn::MaxLanes(hn::ScalableTag<float>()) >= 16;

bool Take(std::int64_t words, std::int64_t block_words) {
  return words % 8 == 0 && block_words >= 2;
}

void Scores(const NibbleRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s,
            std::int64_t s_stride) {
  if constexpr (kWideVectors) {
    if (k.words % 16 == 0) return score_all<16>(k, keys, rows, q, s, s_stride);
  }
  score_all<8>(k, keys, rows, q, s, s_stride);
}

void Accumulate(const NibbleRows& v, std::int64_t keys, std::int64_t rows, const float* p, std::int64_t p_stride,
                float* o, std::int64_t o_stride) {
  if constexpr (kWideVectors) {
    if (v.words % 16 == 0) return accumulate_all<16>(v, keys, rows, p, p_stride, o, o_stride);
  }
  accumulate_all<8>(v, keys, rows, p, p_stride, o, o_stride);
}
#else
bool Take(std::int64_t, std::int64_t) {
  return false;
}
void Scores(const NibbleRows&, std::int64_t, std::int64_t, const float*, float*, std::int64_t) {}
void Accumulate(const NibbleRows&, std::int64_t, std::int64_t, const float*, std::int64_t, float*, std::int64_t) {}
#endif
#undef MPFA_HAVE_NIBBLES

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(Take);
HWY_EXPORT(Scores);
HWY_EXPORT(Accumulate);

bool nibble_ops_take(std::int64_t words, std::int64_t block_words) {
  return HWY_DYNAMIC_DISPATCH(Take)(words, block_words);
}
void nibble_scores(const NibbleRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s,
                   std::int64_t s_stride) {
  HWY_DYNAMIC_DISPATCH(Scores)(k, keys, rows, q, s, s_stride);
}
void nibble_accumulate(const NibbleRows& v, std::int64_t keys, std::int64_t rows, const float* p, std::int64_t p_stride,
                       float* o, std::int64_t o_stride) {
  HWY_DYNAMIC_DISPATCH(Accumulate)(v, keys, rows, p, p_stride, o, o_stride);
}

}  // namespace mpfa::cpu
#endif
