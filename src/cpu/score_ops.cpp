#include "cpu/score_ops.hpp"

#include <algorithm>

#include "mpfa/attention.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/score_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#define MPFA_HAVE_WORDS (HWY_MAX_BYTES >= 32 && HWY_TARGET != HWY_SCALAR)

#if MPFA_HAVE_WORDS
constexpr std::size_t kVector = hn::MaxLanes(hn::CappedTag<float, 16>());
constexpr int kGroups = kVector == 16 ? 2 : 1;  // vectors of keys at a time, as many as the register file takes
constexpr int kMostRows = 4;

#include "cpu/word_codecs-inl.hpp"

using D = hn::CappedTag<float, kVector>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;
using W = hn::Vec<DU>;

/// 16 bytes of every fourth key, from key `first` on.
HWY_INLINE W every_fourth(const std::byte* const* key, std::int64_t offset) {
  const DU du;
  const auto bytes = [&](int i) { return hn::LoadDup128(du, reinterpret_cast<const std::uint32_t*>(key[i] + offset)); };
  const W low = hn::OddEvenBlocks(bytes(4), bytes(0));
  if constexpr (kVector == 16) {
    return hn::ConcatUpperLower(du, hn::OddEvenBlocks(bytes(12), bytes(8)), low);
  } else {
    return low;
  }
}

/// Four words of kVector keys: w[i] holds word i of every key.
HWY_INLINE void load_words(const std::byte* const* key, std::int64_t offset, W (&w)[4]) {
  const DU du;
  const hn::Repartition<std::uint64_t, DU> pairs;
  const W a = every_fourth(key, offset), b = every_fourth(key + 1, offset);
  const W c = every_fourth(key + 2, offset), d = every_fourth(key + 3, offset);
  const auto ab = hn::BitCast(pairs, hn::InterleaveLower(du, a, b));
  const auto cd = hn::BitCast(pairs, hn::InterleaveLower(du, c, d));
  const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(du, a, b));
  const auto cd_high = hn::BitCast(pairs, hn::InterleaveUpper(du, c, d));
  w[0] = hn::BitCast(du, hn::InterleaveLower(pairs, ab, cd));
  w[1] = hn::BitCast(du, hn::InterleaveUpper(pairs, ab, cd));
  w[2] = hn::BitCast(du, hn::InterleaveLower(pairs, ab_high, cd_high));
  w[3] = hn::BitCast(du, hn::InterleaveUpper(pairs, ab_high, cd_high));
}

/// kGroups vectors of keys. A factor is applied after every kFlush words.
template <class Codec, int kRows, int kFlush>
void score_block(const WordRows& k, std::int64_t keys, const float* q, const float* factors, float* s) {
  const D d;
  const Codec codec(k.table);
  const std::int64_t channels = k.words * Codec::kPerWord;
  const std::byte* key[kGroups * kVector];
  const std::byte* at = k.codes;
  for (std::int64_t j = 0; j < static_cast<std::int64_t>(kGroups * kVector); ++j) {
    key[j] = at;
    if (j + 1 < keys) at += k.row_stride;  // lanes past the last key repeat it
  }
  V total[kRows][kGroups];
  for (auto& row : total) {
    for (V& t : row) t = hn::Zero(d);
  }
  std::int64_t in_block = 0;
  for (std::int64_t w = 0; w < k.words; w += 4) {
    W words[kGroups][4];
    for (int g = 0; g < kGroups; ++g) load_words(key + g * kVector, w * 4, words[g]);
    for (int first = 0; first < 4; first += kFlush) {
      V acc[kRows][kGroups];
      for (auto& row : acc) {
        for (V& t : row) t = hn::Zero(d);
      }
      for (int i = first; i < first + kFlush; ++i) {
        for (int n = 0; n < Codec::kPerWord; ++n) {
          V element[kGroups];
          for (int g = 0; g < kGroups; ++g) {
            element[g] = codec.first(words[g][i]);
            words[g][i] = next_code<Codec>(words[g][i]);
          }
          for (int r = 0; r < kRows; ++r) {
            const V x = hn::Set(d, q[r * channels + i * Codec::kPerWord + n]);
            for (int g = 0; g < kGroups; ++g) acc[r][g] = hn::MulAdd(x, element[g], acc[r][g]);
          }
        }
      }
      for (int g = 0; g < kGroups; ++g) {
        const V factor = hn::LoadU(d, factors + g * kVector);
        for (int r = 0; r < kRows; ++r) total[r][g] = hn::MulAdd(acc[r][g], factor, total[r][g]);
      }
      in_block += kFlush;
      if (in_block == k.block_words) {
        in_block = 0;
        factors += kKeyTile;
      }
    }
    q += 4 * Codec::kPerWord;
  }
  for (int g = 0; g < kGroups; ++g) {
    const std::int64_t rest = keys - static_cast<std::int64_t>(g * kVector);
    if (rest <= 0) return;
    for (int r = 0; r < kRows; ++r) {
      float* out = s + r * kKeyTile + g * kVector;
      if (rest >= static_cast<std::int64_t>(kVector)) {
        hn::StoreU(total[r][g], d, out);
      } else {
        hn::BlendedStore(total[r][g], hn::FirstN(d, static_cast<std::size_t>(rest)), d, out);
      }
    }
  }
}

template <class Codec, int kRows>
void score_rows(const WordRows& k, std::int64_t keys, const float* q, float* s) {
  constexpr auto kStep = static_cast<std::int64_t>(kGroups * kVector);
  WordRows rest = k;
  for (std::int64_t j = 0; j < keys; j += kStep) {
    rest.codes = k.codes + j * k.row_stride;
    if constexpr (Codec::kPerWord == 8) {
      if (k.block_words == 2) {
        score_block<Codec, kRows, 2>(rest, keys - j, q, k.factors + j, s + j);
        continue;
      }
    }
    score_block<Codec, kRows, 4>(rest, keys - j, q, k.factors + j, s + j);
  }
}

template <class Codec>
void score_all(const WordRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s) {
  const std::int64_t channels = k.words * Codec::kPerWord;
  const std::int64_t passes = (rows + kMostRows - 1) / kMostRows;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    const std::int64_t n = (rows + pass) / passes;  // passes of about the same size
    switch (n) {
      case 4: score_rows<Codec, 4>(k, keys, q, s); break;
      case 3: score_rows<Codec, 3>(k, keys, q, s); break;
      case 2: score_rows<Codec, 2>(k, keys, q, s); break;
      default: score_rows<Codec, 1>(k, keys, q, s); break;
    }
    q += n * channels;
    s += n * kKeyTile;
  }
}

bool Take(formats::WordCode code, std::int64_t words, std::int64_t block_words) {
  return words % 4 == 0 && (block_words % 4 == 0 || (code == formats::WordCode::table16 && block_words == 2));
}

void Scores(const WordRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s) {
#define MPFA_CALL(Codec) score_all<Codec>(k, keys, rows, q, s)
  MPFA_FOR_CODE(k.code, kVector, MPFA_CALL)
#undef MPFA_CALL
}
#else
bool Take(formats::WordCode, std::int64_t, std::int64_t) {
  return false;
}
void Scores(const WordRows&, std::int64_t, std::int64_t, const float*, float*) {}
#endif
#undef MPFA_HAVE_WORDS

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(Take);
HWY_EXPORT(Scores);

bool score_ops_take(formats::WordCode code, std::int64_t words, std::int64_t block_words) {
  return HWY_DYNAMIC_DISPATCH(Take)(code, words, block_words);
}
void score_keys(const WordRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s) {
  HWY_DYNAMIC_DISPATCH(Scores)(k, keys, rows, q, s);
}

}  // namespace mpfa::cpu
#endif
