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

template <std::size_t kLanes>
void ExpandOf(const WordRows& x, std::int64_t keys, const float* minima, float* out, std::int64_t stride) {
#define MPFA_CALL(Codec) expand_all<kLanes, Codec>(x, keys, minima, out, stride)
  MPFA_FOR_CODE(x.code, kLanes, MPFA_CALL)
#undef MPFA_CALL
}

constexpr bool kWideVectors = hn::MaxLanes(hn::ScalableTag<float>()) >= 16;

bool Take(std::int64_t words) {
  return words % 8 == 0;
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
void Expand(const WordRows&, std::int64_t, const float*, float*, std::int64_t) {}
#endif
#undef MPFA_HAVE_WORDS

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(Take);
HWY_EXPORT(Expand);

bool word_ops_take(std::int64_t words) {
  return HWY_DYNAMIC_DISPATCH(Take)(words);
}
void word_expand(const WordRows& x, std::int64_t keys, const float* minima, float* out, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(Expand)(x, keys, minima, out, stride);
}

}  // namespace mpfa::cpu
#endif
