#include "cpu/value_ops.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "mpfa/attention.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/value_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#define MPFA_HAVE_WORDS (HWY_MAX_BYTES >= 32 && HWY_TARGET != HWY_SCALAR)

#if MPFA_HAVE_WORDS
constexpr std::size_t kVector = hn::MaxLanes(hn::CappedTag<float, 16>());
constexpr int kAccumulators = kVector == 16 ? 16 : 8;  // of a pass over the keys, as many as the register file takes
constexpr int kMostRows = 4;                           // of a pass, or twice as many

#include "cpu/byte_codes-inl.hpp"
#include "cpu/word_codecs-inl.hpp"
#include "cpu/word_special-inl.hpp"

using D = hn::CappedTag<float, kVector>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;

/// Channels [kVector * v, kVector * (v + 1)) of a row, of 4-bit codes in the order of value_index().
template <class Codec>
class Row {
 public:
  explicit Row(const float* table) : codec_(table) {
    HWY_ALIGN std::uint32_t shift[kVector];
    for (std::size_t i = 0; i < kVector; ++i) shift[i] = static_cast<std::uint32_t>(4 * (kVector == 16 ? i / 2 : i));
    shift_ = hn::Load(DU(), shift);
  }

  HWY_INLINE V operator()(const std::byte* row, std::int64_t v) const {
    constexpr auto n = static_cast<std::int64_t>(kVector);
    const std::byte* at = row + v * n * 4 / Codec::kPerWord;
    const DU du;
    if constexpr (Codec::kPerWord == 8) {
      // Every lane takes the bytes of all and shifts its own code down, so that nothing crosses lanes.
      using Bits = std::conditional_t<kVector == 16, std::uint64_t, std::uint32_t>;
      Bits codes;
      std::memcpy(&codes, at, sizeof(codes));
      return codec_.first(hn::Shr(hn::BitCast(du, hn::Set(hn::Repartition<Bits, DU>(), codes)), shift_));
    } else if constexpr (std::is_same_v<Codec, Int8<kVector>>) {
      const hn::Rebind<std::int8_t, D> bytes;
      const auto codes = hn::LoadU(bytes, reinterpret_cast<const std::int8_t*>(at));
      return hn::ConvertTo(D(), hn::PromoteTo(hn::RebindToSigned<D>(), codes));
    } else if constexpr (Codec::kPerWord == 4) {
      const hn::Rebind<std::uint8_t, D> bytes;
      return codec_.first(hn::PromoteTo(du, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(at))));
    } else if constexpr (Codec::kPerWord == 2) {
      const hn::Rebind<std::uint16_t, D> halves;
      return codec_.first(hn::PromoteTo(du, hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(at))));
    } else {
      return codec_.first(hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(at)));
    }
  }

 private:
  Codec codec_;
  hn::Vec<DU> shift_;
};

/// kCount vectors of kRows rows over all keys, kShare of which share a block; weights [blocks, kRows, kKeyTile].
/// Every address is a constant from two pointers. Returns a vector with a NaN lane when a sum is not finite.
template <class Codec, int kRows, int kCount, int kShare>
V add_vectors(const Row<Codec>& row, const std::byte* codes, std::int64_t code_stride, const std::byte* next,
              std::int64_t next_stride, std::int64_t keys, const float* weights, const float* from, float* to,
              std::int64_t stride) {
  const D d;
  V acc[kRows][kCount];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kCount; ++i) acc[r][i] = hn::LoadU(d, from + r * stride + i * kVector);
  }
  for (std::int64_t j = 0; j < keys; ++j, codes += code_stride, next += next_stride, ++weights) {
    __builtin_prefetch(next);
    for (int b = 0; b < kCount / kShare; ++b) {
      V element[kShare];
      for (int i = 0; i < kShare; ++i) element[i] = row(codes, b * kShare + i);
      for (int r = 0; r < kRows; ++r) {
        const V weight = hn::Set(d, weights[(b * kRows + r) * kKeyTile]);
        for (int i = 0; i < kShare; ++i) {
          V& sum = acc[r][b * kShare + i];
          sum = hn::MulAdd(weight, element[i], sum);
        }
      }
    }
  }
  V bad = hn::Zero(d);
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kCount; ++i) {
      hn::StoreU(acc[r][i], d, to + r * stride + i * kVector);
      bad = hn::MulAdd(acc[r][i], hn::Zero(d), bad);  // Inf * 0 is NaN as well
    }
  }
  return bad;
}

template <class Codec, int kRows>
bool add_float_rows(const WordRows& v, std::int64_t keys, const float* p, float* weights, const float* from, float* to,
                    std::int64_t stride) {
  // 16 accumulators fit the register file.
  constexpr int kVectors = kAccumulators / std::max(kRows, kMostRows);
  const D d;
  constexpr auto n = static_cast<std::int64_t>(kVector);
  float* out = weights;
  for (std::int64_t first = 0; first < v.words; first += v.block_words) {
    const float* factors = v.factors + (out - weights) / kRows;
    for (int r = 0; r < kRows; ++r, out += kKeyTile) {
      for (std::int64_t j = 0; j < kKeyTile; j += n) {
        const V weight = hn::LoadU(d, p + r * kKeyTile + j);
        const V w = hn::Mul(weight, hn::LoadU(d, factors + j));
        hn::StoreU(hn::IfThenZeroElse(hn::Eq(weight, hn::Zero(d)), w), d, out + j);
      }
    }
  }
  const Row<Codec> row(v.table);
  const std::int64_t vectors = v.words * Codec::kPerWord / n;
  const std::int64_t share = v.block_words * Codec::kPerWord / n;
  V bad = hn::Zero(d);
  // Passes over the keys fetch rows of K, the later half of them rows of V.
  const std::int64_t passes = std::max<std::int64_t>(vectors / kVectors, 1), of_k = (passes + 1) / 2;
  std::int64_t i = 0, in_block = 0;  // divisions would cost as much as a key
  const float* w = weights;
  const auto add = [&]<int kCount, int kShare>() HWY_ATTR {
    const std::int64_t pass = std::min(i / kVectors, passes - 1);
    const bool k = pass < of_k;
    const std::int64_t step = passes <= 2 ? v.next_stride[k ? 0 : 1] : v.next_stride[k ? 0 : 1] / of_k;
    const std::byte* next = v.next[k ? 0 : 1] + (k ? pass : pass - of_k) * keys * step;
    const std::byte* codes = v.codes + i * n * 4 / Codec::kPerWord;
    bad = hn::Add(bad, add_vectors<Codec, kRows, kCount, kShare>(row, codes, v.row_stride, next, step, keys, w,
                                                                 from + i * n, to + i * n, stride));
    i += kCount;
    for (in_block += kCount; in_block >= share; in_block -= share) w += kRows * kKeyTile;
  };
  while (i + kVectors <= vectors) {
    if (in_block + kVectors <= share) {
      add.template operator()<kVectors, kVectors>();
    } else if (share == 2) {
      add.template operator() < kVectors, kVectors<2 ? 1 : 2>();
    } else if (share == 1) {
      add.template operator()<kVectors, 1>();
    } else {
      break;
    }
  }
  while (i < vectors) add.template operator()<1, 1>();
  return hn::AllTrue(d, hn::Eq(bad, bad));
}

#include "cpu/value_integers-inl.hpp"

template <class Codec, int kRows>
bool add_rows(const WordRows& v, std::int64_t keys, const float* p, float* weights, const float* from, float* to,
              std::int64_t stride) {
  if constexpr (kMayHaveBytes && Codec::kPerWord == 8 && kRows <= kMostRows) {
    if (v.bytes != nullptr && keys == kKeyTile) {
      if (add_integers<kRows>(v, p, weights, from, to, stride)) return true;
      if constexpr (kRows > 1) {  // how a row is summed must not depend on the others
        bool finite = true;
        for (std::int64_t r = 0; r < kRows; ++r) {
          finite &= add_rows<Codec, 1>(v, keys, p + r * kKeyTile, weights, from + r * stride, to + r * stride, stride);
        }
        return finite;
      }
    }
  }
  return add_float_rows<Codec, kRows>(v, keys, p, weights, from, to, stride);
}

template <class Codec>
bool add_all(const WordRows& v, std::int64_t keys, std::int64_t rows, const float* p, float* weights, const float* from,
             float* to, std::int64_t stride) {
  if constexpr (MayBeFinite<Codec>) {
    if (!has_special<Codec>(v, keys)) {
      return add_all<typename Codec::Finite>(v, keys, rows, p, weights, from, to, stride);
    }
  }
  if (rows == kMostRows) return add_rows<Codec, kMostRows>(v, keys, p, weights, from, to, stride);
  if (rows == 2 * kMostRows && v.bytes == nullptr)
    return add_rows<Codec, 2 * kMostRows>(v, keys, p, weights, from, to, stride);
  const std::int64_t passes = (rows + kMostRows - 1) / kMostRows;
  bool finite = true;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    const std::int64_t n = (rows + pass) / passes;  // passes of about the same size
    switch (n) {
      case 4: finite &= add_rows<Codec, 4>(v, keys, p, weights, from, to, stride); break;
      case 3: finite &= add_rows<Codec, 3>(v, keys, p, weights, from, to, stride); break;
      case 2: finite &= add_rows<Codec, 2>(v, keys, p, weights, from, to, stride); break;
      default: finite &= add_rows<Codec, 1>(v, keys, p, weights, from, to, stride); break;
    }
    p += n * kKeyTile;
    from += n * stride;
    to += n * stride;
  }
  return finite;
}

bool TakeValues(std::int64_t channels, std::int64_t block) {
  constexpr auto n = static_cast<std::int64_t>(kVector);
  return channels % n == 0 && block % n == 0;
}

std::int64_t ValueSpan(formats::WordCode code) {
  return code == formats::WordCode::table16 && kVector == 16 ? 16 : 1;
}

bool SumValues(const WordRows& v, std::int64_t keys, std::int64_t rows, const float* p, float* weights,
               const float* from, float* to, std::int64_t stride) {
#define MPFA_CALL(Codec) add_all<Codec>(v, keys, rows, p, weights, from, to, stride)
  MPFA_FOR_CODE(v.code, kVector, MPFA_CALL)
#undef MPFA_CALL
  return false;
}
#if HWY_TARGET > HWY_AVX3
bool ByteTable(const WordRows&, ValueBytes&) {
  return false;
}
#endif
#else
bool ByteTable(const WordRows&, ValueBytes&) {
  return false;
}
bool TakeValues(std::int64_t, std::int64_t) {
  return false;
}
std::int64_t ValueSpan(formats::WordCode) {
  return 1;
}
bool SumValues(const WordRows&, std::int64_t, std::int64_t, const float*, float*, const float*, float*, std::int64_t) {
  return false;
}
#endif
#undef MPFA_HAVE_WORDS

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(TakeValues);
HWY_EXPORT(ValueSpan);
HWY_EXPORT(ByteTable);
HWY_EXPORT(SumValues);

bool value_ops_take(std::int64_t channels, std::int64_t block) {
  return HWY_DYNAMIC_DISPATCH(TakeValues)(channels, block);
}
std::int64_t value_span(formats::WordCode code) {
  return HWY_DYNAMIC_DISPATCH(ValueSpan)(code);
}
bool value_bytes(const WordRows& v, ValueBytes& bytes) {
  return HWY_DYNAMIC_DISPATCH(ByteTable)(v, bytes);
}
bool add_values(const WordRows& v, std::int64_t keys, std::int64_t rows, const float* p, float* weights,
                const float* from, float* to, std::int64_t stride) {
  return HWY_DYNAMIC_DISPATCH(SumValues)(v, keys, rows, p, weights, from, to, stride);
}

}  // namespace mpfa::cpu
#endif
