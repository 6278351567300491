#include "cpu/word_ops.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/word_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The lookup needs vectors of at least 8 floats.
#define MPFA_HAVE_WORDS (HWY_MAX_BYTES >= 32 && HWY_TARGET != HWY_SCALAR)

#if MPFA_HAVE_WORDS
constexpr int kRowsAtOnce = HWY_TARGET <= HWY_AVX3 ? 4 : 2;  // accumulators that fit the register file

#include "cpu/word_codecs-inl.hpp"

/// Spreads the factors of a row over the lanes of its chunks. No integer division: it would cost as much as a key.
template <std::size_t kLanes>
class Spread {
 public:
  using D = hn::CappedTag<float, kLanes>;

  explicit Spread(const WordRows& x)
      : wide_(x.block_words >= static_cast<std::int64_t>(kLanes)),
        inverse_(1.0F / static_cast<float>(x.block_words)),
        indices_(hn::IndicesFromVec(
            D(), hn::ConvertTo(hn::RebindToSigned<D>(), hn::Mul(hn::Iota(D(), 0.5F), hn::Set(D(), inverse_))))) {}

  /// Block of a word of a row.
  HWY_INLINE std::int64_t block(std::int64_t word) const {
    return static_cast<std::int64_t>((static_cast<float>(word) + 0.5F) * inverse_);
  }
  /// Factor of every lane of the chunk that starts at *factor.
  HWY_INLINE hn::Vec<D> operator()(const float* factor) const {
    if (wide_) return hn::Set(D(), *factor);
    return hn::TableLookupLanes(hn::LoadU(D(), factor), indices_);  // factors are padded: kFactorPadding
  }

 private:
  bool wide_;
  float inverse_;
  decltype(hn::IndicesFromVec(D(), hn::Zero(hn::RebindToSigned<D>()))) indices_;
};

/// Sum of the blocks of four lanes.
template <class D>
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> sum_of_blocks(D d, hn::Vec<D> x) {
  const hn::Half<D> half;
  const auto sum = hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x));
  if constexpr (hn::MaxLanes(half) == 4) {
    return sum;
  } else {
    return sum_of_blocks(half, sum);
  }
}

/// s[j] = sum of the lanes of t[j]. Transposing while adding takes a third of the steps of kKeys sums, and every key is
/// summed in the same order wherever it stands.
template <class D, int kKeys, class V = hn::Vec<D>>
HWY_INLINE void store_sums(D d, const V (&t)[kKeys], float* s) {
  constexpr auto at = [](int j) { return j % kKeys; };
  const hn::Repartition<double, D> pairs;
  const auto ab = hn::Add(hn::InterleaveLower(d, t[at(0)], t[at(1)]), hn::InterleaveUpper(d, t[at(0)], t[at(1)]));
  const auto cd = hn::Add(hn::InterleaveLower(d, t[at(2)], t[at(3)]), hn::InterleaveUpper(d, t[at(2)], t[at(3)]));
  const auto low = hn::InterleaveLower(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, cd));
  const auto high = hn::InterleaveUpper(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, cd));
  const hn::CappedTag<float, 4> four;
  const auto sums = sum_of_blocks(d, hn::Add(hn::BitCast(d, low), hn::BitCast(d, high)));
  if constexpr (kKeys == 4) {
    hn::StoreU(sums, four, s);
  } else {
    HWY_ALIGN float all[4];
    hn::Store(sums, four, all);
    for (int j = 0; j < kKeys; ++j) s[j] = all[j];
  }
}

template <std::size_t kLanes, class Codec, int kRows, int kKeys>
HWY_INLINE void score_block(const WordRows& k, std::int64_t key, const Codec& codec, const Spread<kLanes>& spread,
                            const float* q, float* s, std::int64_t s_stride) {
  using V = typename Codec::V;
  const typename Codec::D d;
  const hn::RebindToUnsigned<typename Codec::D> du;
  const std::int64_t blocks = spread.block(k.words);
  V total[kRows][kKeys];
  for (auto& row : total) {
    for (auto& t : row) t = hn::Zero(d);
  }
  for (std::int64_t w = 0; w < k.words; w += kLanes) {
    typename Codec::W words[kKeys];
    V acc[kRows][kKeys];
    for (int j = 0; j < kKeys; ++j) {
      words[j] = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(k.codes + (key + j) * k.row_stride) + w);
      for (int r = 0; r < kRows; ++r) acc[r][j] = hn::Zero(d);
    }
    for (int n = 0; n < Codec::kPerWord; ++n) {
      V element[kKeys];
      for (int j = 0; j < kKeys; ++j) {
        element[j] = codec.first(words[j]);
        words[j] = next_code<Codec>(words[j]);
      }
      for (int r = 0; r < kRows; ++r) {
        const auto x = hn::LoadU(d, q + (r * Codec::kPerWord + n) * k.words + w);
        for (int j = 0; j < kKeys; ++j) acc[r][j] = hn::MulAdd(x, element[j], acc[r][j]);
      }
    }
    const float* factors = k.factors + key * blocks + spread.block(w);
    for (int j = 0; j < kKeys; ++j) {
      const auto factor = spread(factors + j * blocks);
      for (int r = 0; r < kRows; ++r) total[r][j] = hn::MulAdd(acc[r][j], factor, total[r][j]);
    }
  }
  for (int r = 0; r < kRows; ++r) store_sums(d, total[r], s + r * s_stride + key);
}

template <std::size_t kLanes, class Codec, int kRows>
void score_rows(const WordRows& k, std::int64_t keys, const float* q, float* s, std::int64_t s_stride) {
  const Codec codec(k.table);
  const Spread<kLanes> spread(k);
  constexpr int kKeys = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
  std::int64_t j = 0;
  for (; j + kKeys <= keys; j += kKeys) score_block<kLanes, Codec, kRows, kKeys>(k, j, codec, spread, q, s, s_stride);
  for (; j < keys; ++j) score_block<kLanes, Codec, kRows, 1>(k, j, codec, spread, q, s, s_stride);
}

template <std::size_t kLanes, class Codec, int kRows>
void accumulate_rows(const WordRows& v, std::int64_t keys, const float* p, std::int64_t p_stride, float* o,
                     std::int64_t o_stride) {
  // Up to four codes of a word at a time: kRows * 4 accumulators stay in registers.
  constexpr int kCodes = Codec::kPerWord < 4 ? Codec::kPerWord : 4;
  const typename Codec::D d;
  const hn::RebindToUnsigned<typename Codec::D> du;
  const Codec codec(v.table);
  const Spread<kLanes> spread(v);
  const std::int64_t blocks = spread.block(v.words);
  for (std::int64_t w = 0; w < v.words; w += kLanes) {
    const float* factors = v.factors + spread.block(w);
    for (int first = 0; first < Codec::kPerWord; first += kCodes) {
      typename Codec::V acc[kRows][kCodes];
      for (int r = 0; r < kRows; ++r) {
        for (int n = 0; n < kCodes; ++n) acc[r][n] = hn::LoadU(d, o + r * o_stride + (first + n) * v.words + w);
      }
      for (std::int64_t j = 0; j < keys; ++j) {
        auto words = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(v.codes + j * v.row_stride) + w);
        if (first != 0) words = hn::ShiftRight<16>(words);
        const auto factor = spread(factors + j * blocks);
        typename Codec::V weight[kRows];
        for (int r = 0; r < kRows; ++r) weight[r] = hn::Mul(hn::Set(d, p[r * p_stride + j]), factor);
        for (int n = 0; n < kCodes; ++n) {
          const auto element = codec.first(words);
          words = next_code<Codec>(words);
          for (int r = 0; r < kRows; ++r) acc[r][n] = hn::MulAdd(weight[r], element, acc[r][n]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int n = 0; n < kCodes; ++n) hn::StoreU(acc[r][n], d, o + r * o_stride + (first + n) * v.words + w);
      }
    }
  }
}

template <std::size_t kLanes, class Codec>
void score_all(const WordRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s,
               std::int64_t s_stride) {
  const std::int64_t d = Codec::kPerWord * k.words;
  std::int64_t r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) {
    score_rows<kLanes, Codec, kRowsAtOnce>(k, keys, q + r * d, s + r * s_stride, s_stride);
  }
  if (rows - r >= 2) {
    score_rows<kLanes, Codec, 2>(k, keys, q + r * d, s + r * s_stride, s_stride);
    r += 2;
  }
  if (r < rows) score_rows<kLanes, Codec, 1>(k, keys, q + r * d, s + r * s_stride, s_stride);
}

template <std::size_t kLanes, class Codec>
void accumulate_all(const WordRows& v, std::int64_t keys, std::int64_t rows, const float* p, std::int64_t p_stride,
                    float* o, std::int64_t o_stride) {
  std::int64_t r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) {
    accumulate_rows<kLanes, Codec, kRowsAtOnce>(v, keys, p + r * p_stride, p_stride, o + r * o_stride, o_stride);
  }
  if (rows - r >= 2) {
    accumulate_rows<kLanes, Codec, 2>(v, keys, p + r * p_stride, p_stride, o + r * o_stride, o_stride);
    r += 2;
  }
  if (r < rows) {
    accumulate_rows<kLanes, Codec, 1>(v, keys, p + r * p_stride, p_stride, o + r * o_stride, o_stride);
  }
}

template <std::size_t kLanes, class Codec>
void expand_all(const WordRows& x, std::int64_t keys, const float* minima, float* out, std::int64_t stride) {
  const typename Codec::D d;
  const hn::RebindToUnsigned<typename Codec::D> du;
  const Codec codec(x.table);
  const Spread<kLanes> spread(x);
  const std::int64_t blocks = spread.block(x.words);
  for (std::int64_t w = 0; w < x.words; w += kLanes) {
    const float* factors = x.factors + spread.block(w);
    for (std::int64_t j = 0; j < keys; ++j) {
      auto words = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(x.codes + j * x.row_stride) + w);
      const auto factor = spread(factors + j * blocks);
      const auto minimum = minima == nullptr ? hn::Zero(d) : hn::Set(d, minima[j]);
      for (int n = 0; n < Codec::kPerWord; ++n) {
        hn::StoreU(hn::MulAdd(codec.first(words), factor, minimum), d, out + j * stride + n * x.words + w);
        words = next_code<Codec>(words);
      }
    }
  }
}

#define MPFA_FOR_CODE(code, kLanes, call)                          \
  switch (code) {                                                  \
    case formats::WordCode::table16: return call(Table16<kLanes>); \
    case formats::WordCode::int8: return call(Int8<kLanes>);       \
    case formats::WordCode::e4m3: return call(E4m3<kLanes>);       \
    case formats::WordCode::e5m2: return call(E5m2<kLanes>);       \
    case formats::WordCode::bf16: return call(Bf16<kLanes>);       \
    case formats::WordCode::f16: return call(F16<kLanes>);         \
    case formats::WordCode::f32: return call(F32<kLanes>);         \
    case formats::WordCode::none: return;                          \
  }

template <std::size_t kLanes>
void ScoresOf(const WordRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s,
              std::int64_t s_stride) {
#define MPFA_CALL(Codec) score_all<kLanes, Codec>(k, keys, rows, q, s, s_stride)
  MPFA_FOR_CODE(k.code, kLanes, MPFA_CALL)
#undef MPFA_CALL
}

template <std::size_t kLanes>
void AccumulateOf(const WordRows& v, std::int64_t keys, std::int64_t rows, const float* p, std::int64_t p_stride,
                  float* o, std::int64_t o_stride) {
#define MPFA_CALL(Codec) accumulate_all<kLanes, Codec>(v, keys, rows, p, p_stride, o, o_stride)
  MPFA_FOR_CODE(v.code, kLanes, MPFA_CALL)
#undef MPFA_CALL
}
template <std::size_t kLanes>
void ExpandOf(const WordRows& x, std::int64_t keys, const float* minima, float* out, std::int64_t stride) {
#define MPFA_CALL(Codec) expand_all<kLanes, Codec>(x, keys, minima, out, stride)
  MPFA_FOR_CODE(x.code, kLanes, MPFA_CALL)
#undef MPFA_CALL
}
#undef MPFA_FOR_CODE

constexpr bool kWideVectors = hn::MaxLanes(hn::ScalableTag<float>()) >= 16;

bool Take(std::int64_t words) {
  return words % 8 == 0;
}

void Scores(const WordRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s, std::int64_t s_stride) {
  if constexpr (kWideVectors) {
    if (k.words % 16 == 0) return ScoresOf<16>(k, keys, rows, q, s, s_stride);
  }
  ScoresOf<8>(k, keys, rows, q, s, s_stride);
}

void Accumulate(const WordRows& v, std::int64_t keys, std::int64_t rows, const float* p, std::int64_t p_stride,
                float* o, std::int64_t o_stride) {
  if constexpr (kWideVectors) {
    if (v.words % 16 == 0) return AccumulateOf<16>(v, keys, rows, p, p_stride, o, o_stride);
  }
  AccumulateOf<8>(v, keys, rows, p, p_stride, o, o_stride);
}

void Expand(const WordRows& x, std::int64_t keys, const float* minima, float* out, std::int64_t stride) {
  if constexpr (kWideVectors) {
    if (x.words % 16 == 0) return ExpandOf<16>(x, keys, minima, out, stride);
  }
  ExpandOf<8>(x, keys, minima, out, stride);
}
#else
bool Take(std::int64_t) {
  return false;
}
void Scores(const WordRows&, std::int64_t, std::int64_t, const float*, float*, std::int64_t) {}
void Accumulate(const WordRows&, std::int64_t, std::int64_t, const float*, std::int64_t, float*, std::int64_t) {}
void Expand(const WordRows&, std::int64_t, const float*, float*, std::int64_t) {}
#endif
#undef MPFA_HAVE_WORDS

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(Take);
HWY_EXPORT(Scores);
HWY_EXPORT(Accumulate);
HWY_EXPORT(Expand);

bool word_ops_take(std::int64_t words) {
  return HWY_DYNAMIC_DISPATCH(Take)(words);
}
void word_scores(const WordRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s,
                 std::int64_t s_stride) {
  HWY_DYNAMIC_DISPATCH(Scores)(k, keys, rows, q, s, s_stride);
}
void word_accumulate(const WordRows& v, std::int64_t keys, std::int64_t rows, const float* p, std::int64_t p_stride,
                     float* o, std::int64_t o_stride) {
  HWY_DYNAMIC_DISPATCH(Accumulate)(v, keys, rows, p, p_stride, o, o_stride);
}

void word_expand(const WordRows& x, std::int64_t keys, const float* minima, float* out, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(Expand)(x, keys, minima, out, stride);
}

}  // namespace mpfa::cpu
#endif
