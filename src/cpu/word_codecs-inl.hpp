// Codecs of word_ops.cpp: the floats of code n of every word of a vector. Included once per instruction set.

/// 16 element values as lookup tables of a vector of kLanes floats.
template <std::size_t kLanes>
class Table16 {
 public:
  static constexpr int kPerWord = 8;
  using D = hn::CappedTag<float, kLanes>;
  using V = hn::Vec<D>;
  using W = hn::Vec<hn::RebindToUnsigned<D>>;

  explicit Table16(const float* values) : low_(hn::LoadU(D(), values)), high_(hn::LoadU(D(), values + 16 - kLanes)) {}

  HWY_INLINE V first(W words) const {
    const V low = lookup(low_, words);
    if constexpr (kLanes == 16) return low;
    return hn::IfNegativeThenElse(hn::BitCast(D(), hn::ShiftLeft<28>(words)), lookup(high_, words), low);
  }

 private:
  static HWY_INLINE V lookup(V table, W words) {
#if HWY_TARGET <= HWY_AVX3
    // The instruction takes the low bits of an index; masking the others, as Highway asks, is a quarter of a lookup.
    if constexpr (kLanes == 16) return V{_mm512_permutexvar_ps(words.raw, table.raw)};
#endif
    const auto index = hn::And(words, hn::Set(hn::RebindToUnsigned<D>(), kLanes - 1));
    return hn::TableLookupLanes(table, hn::IndicesFromVec(D(), index));
  }

  V low_, high_;
};

template <std::size_t kLanes>
class Int8 {
 public:
  static constexpr int kPerWord = 4;
  using D = hn::CappedTag<float, kLanes>;
  using V = hn::Vec<D>;
  using W = hn::Vec<hn::RebindToUnsigned<D>>;

  explicit Int8(const float*) {}
  HWY_INLINE V first(W words) const {
    const hn::RebindToSigned<D> di;
    return hn::ConvertTo(D(), hn::ShiftRight<24>(hn::BitCast(di, hn::ShiftLeft<24>(words))));
  }
};

/// Sign, exponent with kBias, kMan mantissa bits, kBits in all; magnitudes from kSpecial on are Inf or NaN. kFinite:
/// the codes hold none of these.
template <std::size_t kLanes, int kBits, int kMan, int kBias, std::uint32_t kSpecial, bool kFinite = false>
class MiniFloat {
 public:
  static constexpr int kPerWord = 32 / kBits;
  static constexpr std::uint32_t kFirstSpecial = kSpecial;
  static constexpr bool kMayBeFinite = !kFinite && kBits == 8;
  using Finite = MiniFloat<kLanes, kBits, kMan, kBias, kSpecial, true>;
  using D = hn::CappedTag<float, kLanes>;
  using V = hn::Vec<D>;
  using W = hn::Vec<hn::RebindToUnsigned<D>>;

  explicit MiniFloat(const float*) {}
  HWY_INLINE V first(W words) const {
    const D d;
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    if constexpr (kFinite) {
      // The sign stays on top while the rest moves to where a float has it; the mask drops copies of the sign.
      const auto moved = hn::ShiftRight<9 - kBits + kMan>(hn::BitCast(di, hn::ShiftLeft<32 - kBits>(words)));
      constexpr std::uint32_t kKeep = 0x80000000U | ((1U << (kBits - 1)) - 1U) << (23 - kMan);
      return hn::Mul(hn::BitCast(d, hn::And(moved, hn::Set(di, static_cast<std::int32_t>(kKeep)))), hn::Set(d, kLift));
    } else {
      const auto sign = hn::And(hn::ShiftLeft<32 - kBits>(words), hn::Set(du, 0x80000000U));
      const auto magnitude = hn::And(words, hn::Set(du, (1U << (kBits - 1)) - 1U));
      // The exponent field moves as it is and a product mends the bias: exact, subnormals included.
      const auto value = hn::Mul(hn::BitCast(d, hn::ShiftLeft<23 - kMan>(magnitude)), hn::Set(d, kLift));
      const auto special = hn::BitCast(d, hn::Or(hn::ShiftLeft<23 - kMan>(magnitude), hn::Set(du, 0x7F800000U)));
      const auto is_special = hn::Gt(magnitude, hn::Set(du, kSpecial - 1U));
      return hn::Or(hn::IfThenElse(hn::RebindMask(d, is_special), special, value), hn::BitCast(d, sign));
    }
  }

 private:
  static constexpr float kLift = __builtin_bit_cast(float, static_cast<std::uint32_t>(254 - kBias) << 23);
};
template <std::size_t kLanes>
using E4m3 = MiniFloat<kLanes, 8, 3, 7, 0x7F>;
template <std::size_t kLanes>
using E5m2 = MiniFloat<kLanes, 8, 2, 15, 0x7C>;
template <std::size_t kLanes>
using F16 = MiniFloat<kLanes, 16, 10, 15, 0x7C00>;

/// Codecs of bytes that are cheaper for rows without special codes.
template <class Codec>
concept MayBeFinite = requires {
  requires Codec::kMayBeFinite;
};

template <std::size_t kLanes>
class Bf16 {
 public:
  static constexpr int kPerWord = 2;
  using D = hn::CappedTag<float, kLanes>;
  using V = hn::Vec<D>;
  using W = hn::Vec<hn::RebindToUnsigned<D>>;

  explicit Bf16(const float*) {}
  HWY_INLINE V first(W words) const { return hn::BitCast(D(), hn::ShiftLeft<16>(words)); }
};

template <std::size_t kLanes>
class F32 {
 public:
  static constexpr int kPerWord = 1;
  using D = hn::CappedTag<float, kLanes>;
  using V = hn::Vec<D>;
  using W = hn::Vec<hn::RebindToUnsigned<D>>;

  explicit F32(const float*) {}
  HWY_INLINE V first(W words) const { return hn::BitCast(D(), words); }
};

/// The words with code n moved to the lowest place, given code n - 1 there.
template <class Codec>
HWY_INLINE typename Codec::W next_code(typename Codec::W words) {
  if constexpr (Codec::kPerWord == 1) {
    return words;
  } else {
    return hn::ShiftRight<32 / Codec::kPerWord>(words);
  }
}

/// Returns `call(Codec)` for the codec of a word code.
#define MPFA_FOR_CODE(code, kLanes, call)                          \
  switch (code) {                                                  \
    case formats::WordCode::table16: return call(Table16<kLanes>); \
    case formats::WordCode::int8: return call(Int8<kLanes>);       \
    case formats::WordCode::e4m3: return call(E4m3<kLanes>);       \
    case formats::WordCode::e5m2: return call(E5m2<kLanes>);       \
    case formats::WordCode::bf16: return call(Bf16<kLanes>);       \
    case formats::WordCode::f16: return call(F16<kLanes>);         \
    case formats::WordCode::f32: return call(F32<kLanes>);         \
    case formats::WordCode::none: break;                           \
  }
