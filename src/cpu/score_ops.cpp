#include "cpu/score_ops.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "formats/elements.hpp"
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
constexpr std::int64_t kVector = hn::MaxLanes(hn::CappedTag<float, 16>());
constexpr int kGroups = kVector == 16 ? 2 : 1;  // vectors of keys at a time, as many as the register file takes
constexpr int kMostRows = 4;
constexpr std::int64_t kMostWords = 256;  // of a row: the transposed words of a step are kept on the stack

#include "cpu/word_codecs-inl.hpp"
#include "cpu/word_special-inl.hpp"

using D = hn::CappedTag<float, kVector>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;
using W = hn::Vec<DU>;

/// Words whose products are summed before a factor is applied: few, for the accuracy of long blocks.
HWY_INLINE std::int64_t words_of_run(const WordRows& k) {
  return k.block_words % 4 == 0 ? 4 : k.block_words;
}

/// Calls fn(rows of the pass, its first row) for passes of about the same size.
template <class Fn>
void for_passes(std::int64_t rows, Fn fn) {
  if (rows <= kMostRows) return fn(rows, 0);
  const std::int64_t passes = (rows + kMostRows - 1) / kMostRows;
  std::int64_t first = 0;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    const std::int64_t n = (rows + pass) / passes;
    fn(n, first);
    first += n;
  }
}

#include "cpu/transpose_words-inl.hpp"

/// The first `keys` lanes, if there are so many.
HWY_INLINE void store_scores(V x, std::int64_t keys, float* s) {
  const D d;
  if (keys >= static_cast<std::int64_t>(kVector)) {
    hn::StoreU(x, d, s);
  } else if (keys > 0) {
    hn::BlendedStore(x, hn::FirstN(d, static_cast<std::size_t>(keys)), d, s);
  }
}

/// kGroups vectors of keys against kRows queries [channels, kRows].
template <class Codec, int kRows>
void score_block(const WordRows& k, std::int64_t keys, const std::uint32_t* words, const float* q, const float* factors,
                 float* s) {
  const D d;
  const DU du;
  const Codec codec(k.table);
  V total[kRows][kGroups];
  for (auto& row : total) {
    for (V& t : row) t = hn::Zero(d);
  }
  const std::int64_t run = words_of_run(k);
  std::int64_t in_block = 0;
  for (std::int64_t left = k.words; left > 0; left -= run) {
    V acc[kRows][kGroups];
    for (auto& row : acc) {
      for (V& t : row) t = hn::Zero(d);
    }
    for (std::int64_t w = 0; w < run; ++w) {
      W codes[kGroups];
      for (int g = 0; g < kGroups; ++g) codes[g] = hn::Load(du, words + g * kVector);
      for (int n = 0; n < Codec::kPerWord; ++n) {
        V element[kGroups];
        for (int g = 0; g < kGroups; ++g) {
          element[g] = codec.first(codes[g]);
          codes[g] = next_code<Codec>(codes[g]);
        }
        for (int r = 0; r < kRows; ++r) {
          const V x = hn::Set(d, q[n * kRows + r]);
          for (int g = 0; g < kGroups; ++g) acc[r][g] = hn::MulAdd(x, element[g], acc[r][g]);
        }
      }
      words += kGroups * kVector;
      q += Codec::kPerWord * kRows;
    }
    for (int g = 0; g < kGroups; ++g) {
      const V factor = hn::LoadU(d, factors + g * kVector);
      for (int r = 0; r < kRows; ++r) total[r][g] = hn::MulAdd(acc[r][g], factor, total[r][g]);
    }
    in_block += run;
    if (in_block == k.block_words) {
      in_block = 0;
      factors += kKeyTile;
    }
  }
  for (int g = 0; g < kGroups; ++g) {
    for (int r = 0; r < kRows; ++r) store_scores(total[r][g], keys - g * kVector, s + r * kKeyTile + g * kVector);
  }
}

#include "cpu/byte_codes-inl.hpp"
#include "cpu/score_integers-inl.hpp"

template <class Codec>
void score_floats(const WordRows& k, std::int64_t keys, std::int64_t rows, const std::uint32_t* words, const float* q,
                  const float* factors, float* s) {
  const std::int64_t channels = k.words * Codec::kPerWord;
  for_passes(rows, [&](std::int64_t count, std::int64_t first) HWY_ATTR {
    const float* x = q + first * channels;
    float* out = s + first * kKeyTile;
    switch (count) {
      case 4: return score_block<Codec, 4>(k, keys, words, x, factors, out);
      case 3: return score_block<Codec, 3>(k, keys, words, x, factors, out);
      case 2: return score_block<Codec, 2>(k, keys, words, x, factors, out);
      default: return score_block<Codec, 1>(k, keys, words, x, factors, out);
    }
  });
}

template <class Codec>
void score_all(const WordRows& k, std::int64_t keys, std::int64_t rows, const PackedQueries& q, float* s) {
  if constexpr (MayBeFinite<Codec>) {
    if (!has_special<Codec>(k, keys)) return score_all<typename Codec::Finite>(k, keys, rows, q, s);
  }
  constexpr auto kStep = static_cast<std::int64_t>(kGroups * kVector);
  HWY_ALIGN std::uint32_t words[kMostWords * kGroups * kVector];
  for (std::int64_t j = 0; j < keys; j += kStep) {
    for (std::int64_t at = 0; at < std::min(keys - j, kStep); at += kVector) {
      if (keys - j - at < kVector) {
        transpose_few(k, j + at, keys - j - at, words + at);
#if HWY_TARGET <= HWY_AVX3
      } else if (k.words == 8 && k.row_stride == 32) {
        transpose_narrow(k.codes + (j + at) * 32, words + at);
#endif
      } else {
        transpose_rows(k.codes + (j + at) * k.row_stride, k.row_stride, k.words, words + at);
      }
    }
    if constexpr (kMayHaveBytes && Codec::kPerWord == 8) {
      if (q.integers != nullptr) {
        score_integers(k, keys - j, rows, words, q.integers, k.factors + j, s + j);
        continue;
      }
    }
    score_floats<Codec>(k, keys - j, rows, words, q.floats, k.factors + j, s + j);
  }
}

bool TakeScores(std::int64_t words) {
  return words % 4 == 0 && words <= kMostWords;
}

std::int64_t codes_per_word(formats::WordCode code) {
#define MPFA_CALL(Codec) Codec::kPerWord
  MPFA_FOR_CODE(code, kVector, MPFA_CALL)
#undef MPFA_CALL
  return 1;
}

PackedQueries PackQueries(const WordRows& k, std::int64_t rows, const float* q, float slack, float* memory) {
  if constexpr (kMayHaveBytes) {
    if (const std::int32_t* integers = pack_integers(k, rows, q, slack, memory)) return {nullptr, integers};
  }
  const std::int64_t channels = k.words * codes_per_word(k.code);
  for_passes(rows, [&](std::int64_t count, std::int64_t first) HWY_ATTR {
    float* out = memory + first * channels;
    for (std::int64_t r = 0; r < count; ++r) {
      for (std::int64_t c = 0; c < channels; ++c) out[c * count + r] = q[(first + r) * channels + c];
    }
  });
  return {memory, nullptr};
}

void Scores(const WordRows& k, std::int64_t keys, std::int64_t rows, const PackedQueries& q, float* s) {
#define MPFA_CALL(Codec) score_all<Codec>(k, keys, rows, q, s)
  MPFA_FOR_CODE(k.code, kVector, MPFA_CALL)
#undef MPFA_CALL
}
#else
bool TakeScores(std::int64_t) {
  return false;
}
PackedQueries PackQueries(const WordRows&, std::int64_t, const float*, float, float*) {
  return {};
}
void Scores(const WordRows&, std::int64_t, std::int64_t, const PackedQueries&, float*) {}
#endif
#undef MPFA_HAVE_WORDS

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(TakeScores);
HWY_EXPORT(PackQueries);
HWY_EXPORT(Scores);

bool score_ops_take(std::int64_t words) {
  return HWY_DYNAMIC_DISPATCH(TakeScores)(words);
}
PackedQueries pack_queries(const WordRows& k, std::int64_t rows, const float* q, float slack, float* memory) {
  return HWY_DYNAMIC_DISPATCH(PackQueries)(k, rows, q, slack, memory);
}
void score_keys(const WordRows& k, std::int64_t keys, std::int64_t rows, const PackedQueries& q, float* s) {
  HWY_DYNAMIC_DISPATCH(Scores)(k, keys, rows, q, s);
}

}  // namespace mpfa::cpu
#endif
