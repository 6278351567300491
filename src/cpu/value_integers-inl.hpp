// Weighted sums of 4-bit codes whose elements are whole numbers, by dot products of bytes: a weight becomes 16 bits
// relative to the largest of its row and block among 64 keys, in two digits, and the sums are exact. An instruction
// adds four keys, those 16 apart, so that digits need no transposition. Included once per instruction set.

#if HWY_TARGET <= HWY_AVX3
constexpr std::int64_t kGroupBytes = 16, kGroupChannels = 32;  // what two vectors of sums hold
constexpr std::int64_t kMostWeights = 256;                     // rows times blocks
constexpr std::int64_t kQuads = kKeyTile / 4;

/// What becomes of the products of weights and factors of a row and block: times `unit` they are below 2^16, and sums
/// of the products times `scale` are what was wanted.
struct WeightScales {
  alignas(64) float unit[kMostWeights], scale[kMostWeights];
};

/// sum += dot products of four unsigned bytes by four signed ones. With the intrinsic, compilers copy every sum of a
/// loop.
MPFA_BYTES_ATTR HWY_INLINE __m512i add_dots(__m512i sum, __m512i a, __m512i b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

/// Lane i: the largest lane of vector i of [16, 16].
MPFA_BYTES_ATTR HWY_INLINE __m512i lane_maxima(const std::uint32_t* vectors) {
  __m512i x[16];
  for (int i = 0; i < 16; ++i) x[i] = _mm512_load_si512(vectors + 16 * i);
  for (int i = 0; i < 8; ++i) {
    x[i] =
        _mm512_max_epu32(_mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]));
  }
  for (int i = 0; i < 4; ++i) {
    x[i] =
        _mm512_max_epu32(_mm512_unpacklo_epi64(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_epi64(x[2 * i], x[2 * i + 1]));
  }
  for (int n = 2; n > 0; --n) {
    for (int i = 0; i < n; ++i) {
      x[i] = _mm512_max_epu32(_mm512_shuffle_i32x4(x[2 * i], x[2 * i + 1], 0x88),
                              _mm512_shuffle_i32x4(x[2 * i], x[2 * i + 1], 0xDD));
    }
  }
  return x[0];
}

/// weights [blocks, kRows, kKeyTile] = p times factors. False when one is negative or not finite, or when all of a row
/// and block are so small that 16 bits of them are no normal float.
template <int kRows>
MPFA_BYTES_ATTR bool weigh(const WordRows& v, std::int64_t blocks, const float* p, float* weights, WeightScales& s) {
  constexpr std::uint32_t kInf = 0x7F800000, kSmallest = 0x0D800000;  // 2^-100
  alignas(64) std::uint32_t tops[16 * 16];
  __mmask16 bad = 0;
  const __m512 inverse = _mm512_set1_ps(1.0F / v.bytes->multiplier);
  std::int64_t i = 0, done = 0;
  const auto finish = [&]() MPFA_BYTES_ATTR {
    const __m512i top = lane_maxima(tops);
    const __mmask16 none = _mm512_testn_epi32_mask(top, top);
    bad |= _mm512_cmpge_epu32_mask(top, _mm512_set1_epi32(kInf));
    bad |= _mm512_mask_cmplt_epu32_mask(static_cast<__mmask16>(~none), top, _mm512_set1_epi32(kSmallest));
    // A weight just below a power of two must not be rounded up to it.
    const __m512i exponent = _mm512_srli_epi32(_mm512_add_epi32(top, _mm512_set1_epi32(0x80)), 23);
    const __m512i above = _mm512_sub_epi32(exponent, _mm512_set1_epi32(15));
    const __m512i scale = _mm512_maskz_slli_epi32(static_cast<__mmask16>(~none), above, 23);
    const __m512i unit =
        _mm512_maskz_slli_epi32(static_cast<__mmask16>(~none), _mm512_sub_epi32(_mm512_set1_epi32(254), above), 23);
    _mm512_store_ps(s.scale + done, _mm512_mul_ps(_mm512_castsi512_ps(scale), inverse));
    _mm512_store_si512(s.unit + done, unit);
    done += 16;
  };
  const float* factors = v.factors;
  for (std::int64_t b = 0; b < blocks; ++b, factors += kKeyTile) {
    for (int r = 0; r < kRows; ++r, ++i, weights += kKeyTile) {
      if (i == done + 16) finish();
      __m512i top = _mm512_setzero_si512();
      for (int j = 0; j < kKeyTile; j += 16) {
        const __m512 w = _mm512_mul_ps(_mm512_loadu_ps(p + r * kKeyTile + j), _mm512_loadu_ps(factors + j));
        _mm512_storeu_ps(weights + j, w);
        top = _mm512_max_epu32(top, _mm512_castps_si512(w));
      }
      _mm512_store_si512(tops + (i - done) * 16, top);
    }
  }
  for (; i < done + 16; ++i) _mm512_store_si512(tops + (i - done) * 16, _mm512_setzero_si512());
  finish();
  return bad == 0;
}

/// 64 weights as dwords [2 digits, kQuads], the higher digit second: byte n of quad q is key q + 16 * (0, 2, 1, 3)[n].
MPFA_BYTES_ATTR HWY_INLINE void digits_of(const float* weights, float unit, __m512i (&digits)[2]) {
  const __m512 magic = _mm512_set1_ps(0x1p23F), u = _mm512_set1_ps(unit);  // the lowest bits take the nearest integer
  const auto whole = [&](int i) MPFA_BYTES_ATTR {
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_loadu_ps(weights + 16 * i), u, magic));
  };
  constexpr __mmask32 kOdd = 0xAAAAAAAA;
  const __m512i a = _mm512_mask_blend_epi16(kOdd, whole(0), _mm512_slli_epi32(whole(1), 16));
  const __m512i b = _mm512_mask_blend_epi16(kOdd, whole(2), _mm512_slli_epi32(whole(3), 16));
  const __m512i low = _mm512_set1_epi16(0xFF);
  constexpr int kSelect = 0xCA;  // first ? second : third
  digits[0] = _mm512_ternarylogic_epi32(low, a, _mm512_slli_epi16(b, 8), kSelect);
  digits[1] = _mm512_ternarylogic_epi32(low, _mm512_srli_epi16(a, 8), b, kSelect);
}

/// weights to digits, where they are: per block and row [2 digits, kQuads] or, of pairs of blocks, per pair and row
/// [2 digits, kQuads with quads 2 and 3 of four 16 places later, 2 blocks].
template <int kRows, bool kPairs>
MPFA_BYTES_ATTR void to_digits(std::int64_t blocks, float* weights, const float* unit) {
  constexpr std::int64_t kRow = kKeyTile;
  for (std::int64_t b = 0; b < blocks; b += kPairs ? 2 : 1) {
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t i = b * kRows + r;
      __m512i first[2];
      digits_of(weights + i * kRow, unit[i], first);
      if constexpr (kPairs) {
        __m512i second[2];
        digits_of(weights + (i + kRows) * kRow, unit[i + kRows], second);
        for (int n = 0; n < 2; ++n) {
          _mm512_storeu_si512(weights + i * kRow + 32 * n, _mm512_unpacklo_epi32(first[n], second[n]));
          _mm512_storeu_si512(weights + i * kRow + 32 * n + 16, _mm512_unpackhi_epi32(first[n], second[n]));
        }
      } else {
        for (int n = 0; n < 2; ++n) _mm512_storeu_si512(weights + i * kRow + 16 * n, first[n]);
      }
    }
  }
}

/// The byte of a group that dword i is made of: those of two blocks take turns in pairs.
template <bool kPairs>
constexpr int byte_of(int i) {
  return kPairs ? i % 2 * 8 + i / 2 : i;
}

/// Bytes of a group of four keys, [4 keys, 16], to dwords of four keys.
template <bool kPairs>
constexpr std::array<std::uint8_t, 64> quad_order() {
  std::array<std::uint8_t, 64> order{};
  for (int i = 0; i < 64; ++i) order[i] = static_cast<std::uint8_t>(i % 4 * 16 + byte_of<kPairs>(i / 4));
  return order;
}

/// Places of the first 16 channels of a group, in the order of value_index(), among sums of even and of odd channels;
/// those of the other 16 are `kPairs ? 1 : 8` further.
template <bool kPairs>
constexpr std::array<std::int32_t, 16> channel_order() {
  std::array<std::int32_t, 16> order{};
  for (int i = 0; i < 16; ++i) {
    const int channel = i / 2 + i % 2 * 8, byte = channel / 2;
    order[i] = (kPairs ? byte * 2 : byte) + channel % 2 * 16;
  }
  return order;
}

/// sum [2 digits, even and odd channels, rows] += the products of a group of the four keys of a quad.
template <int kRows, bool kPairs>
MPFA_BYTES_ATTR HWY_INLINE void add_quad(const std::byte* codes, std::int64_t quarter, __m512i order, __m512i table,
                                         const float* digits, __m512i (&sum)[2][2][kRows]) {
  const auto group = [&](std::int64_t i) MPFA_BYTES_ATTR {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i * quarter));
  };
  __m512i bytes = _mm512_castsi128_si512(group(0));
  bytes = _mm512_mask_broadcast_i32x4(bytes, 0x00F0, group(2));
  bytes = _mm512_mask_broadcast_i32x4(bytes, 0x0F00, group(1));
  bytes = _mm512_mask_broadcast_i32x4(bytes, 0xF000, group(3));
  bytes = _mm512_permutexvar_epi8(order, bytes);
  const __m512i even = _mm512_permutexvar_epi8(bytes, table);
  const __m512i odd = _mm512_permutexvar_epi8(_mm512_srli_epi16(bytes, 4), table);
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < 2; ++n) {
      const float* at = digits + r * kKeyTile + n * kQuads * (kPairs ? 2 : 1);
      __m512i weight;
      if constexpr (kPairs) {
        weight = _mm512_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
      } else {
        weight = _mm512_castps_si512(_mm512_set1_ps(*at));
      }
      sum[n][0][r] = add_dots(sum[n][0][r], weight, even);
      sum[n][1][r] = add_dots(sum[n][1][r], weight, odd);
    }
  }
}

/// to = from + the sums of kGroupChannels channels from `codes` on. Fetches kQuads lines of `next` each.
template <int kRows, bool kPairs>
MPFA_BYTES_ATTR void add_group(const WordRows& v, const std::byte* codes, const std::byte* const (&next)[2],
                               const float* digits, const float* scale, const float* from, float* to,
                               std::int64_t stride) {
  static constexpr auto kOrder = quad_order<kPairs>();
  static constexpr auto kChannels = channel_order<kPairs>();
  const __m512i table = _mm512_loadu_si512(v.bytes->table.data()), order = _mm512_loadu_si512(kOrder.data());
  __m512i sum[2][2][kRows] = {};
  const std::int64_t quarter = 16 * v.row_stride;
  for (std::int64_t q = 0; q < kQuads; q += 4, codes += 4 * v.row_stride) {
    for (const std::byte* line : next) {
      for (std::int64_t i = 0; i < 4; ++i) __builtin_prefetch(line + (q + i) * 64);
    }
    const float* at = digits + q;
    add_quad<kRows, kPairs>(codes, quarter, order, table, at, sum);
    add_quad<kRows, kPairs>(codes + v.row_stride, quarter, order, table, at + (kPairs ? 2 : 1), sum);
    add_quad<kRows, kPairs>(codes + 2 * v.row_stride, quarter, order, table, at + (kPairs ? 16 : 2), sum);
    add_quad<kRows, kPairs>(codes + 3 * v.row_stride, quarter, order, table, at + (kPairs ? 18 : 3), sum);
  }
  const __m512i first = _mm512_loadu_si512(kChannels.data());
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(kPairs ? 1 : 8));
  for (int r = 0; r < kRows; ++r, from += stride, to += stride) {
    __m512 unit = _mm512_set1_ps(scale[r]);
    if constexpr (kPairs) unit = _mm512_mask_blend_ps(0xAAAA, unit, _mm512_set1_ps(scale[kRows + r]));
    __m512 x[2];
    for (int i = 0; i < 2; ++i) {
      const __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(sum[1][i][r], 8), sum[0][i][r]);
      x[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), unit);
    }
    _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(from), _mm512_permutex2var_ps(x[0], first, x[1])));
    _mm512_storeu_ps(to + 16, _mm512_add_ps(_mm512_loadu_ps(from + 16), _mm512_permutex2var_ps(x[0], second, x[1])));
  }
}

template <int kRows, bool kPairs>
MPFA_BYTES_ATTR bool add_groups(const WordRows& v, const float* p, float* weights, const float* from, float* to,
                                std::int64_t stride) {
  const std::int64_t groups = v.words / 4, share = v.block_words / 4;  // groups of a block
  const std::int64_t blocks = kPairs ? groups * 2 : groups / share;
  WeightScales scales;
  if (!weigh<kRows>(v, blocks, p, weights, scales)) return false;
  to_digits<kRows, kPairs>(blocks, weights, scales.unit);
  const float *digits = weights, *scale = scales.scale;
  std::int64_t in_block = 0;
  const std::byte* next[2];
  for (const int i : {0, 1}) next[i] = v.next[i] == nullptr ? v.codes : v.next[i];
  for (std::int64_t g = 0; g < groups; ++g) {
    add_group<kRows, kPairs>(v, v.codes + g * kGroupBytes, next, digits, scale, from + g * kGroupChannels,
                             to + g * kGroupChannels, stride);
    for (const std::byte*& line : next) line += kQuads * 64;
    if (++in_block < share) continue;
    in_block = 0;
    digits += (kPairs ? 2 : 1) * kRows * kKeyTile;
    scale += (kPairs ? 2 : 1) * kRows;
  }
  return true;
}

/// add_rows() for 64 keys with v.bytes. False, with nothing done, when the weights do not allow it.
template <int kRows>
bool add_integers(const WordRows& v, const float* p, float* weights, const float* from, float* to,
                  std::int64_t stride) {
  if (v.block_words == 2) return add_groups<kRows, true>(v, p, weights, from, to, stride);
  return add_groups<kRows, false>(v, p, weights, from, to, stride);
}

bool ByteTable(const WordRows& v, ValueBytes& bytes) {
  const std::int64_t blocks = v.words / v.block_words;
  if (v.code != formats::WordCode::table16 || !have_bytes() || v.words % 4 != 0 || blocks * kMostRows > kMostWeights) {
    return false;
  }
  if (v.block_words != 2 && v.block_words % 4 != 0) return false;
  const std::optional<ByteCodes> codes = byte_codes(v.table);
  if (!codes) return false;
  bytes.multiplier = codes->multiplier;
  for (int i = 0; i < 64; ++i) bytes.table[i] = static_cast<std::uint8_t>(codes->table[i] - codes->offset);
  return true;
}
#endif
