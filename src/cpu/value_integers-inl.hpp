// Weighted sums of 4-bit codes whose elements are whole numbers, by dot products of bytes: a weight becomes 16 bits
// relative to the largest of its row and block among 64 keys, in two digits, and the sums are exact. An instruction
// adds four keys that follow each other. Included once per instruction set.

#if HWY_TARGET <= HWY_AVX3
constexpr std::int64_t kGroupBytes = 16, kGroupChannels = 32;  // what two vectors of sums hold
constexpr std::int64_t kMostWeights = 256;                     // rows times blocks
constexpr std::int64_t kQuads = kKeyTile / 4;

/// What becomes of the products of weights and factors of a row and block: times `unit` they are below 2^16, and sums
/// of the products times `scale` are what was wanted.
struct WeightScales {
  alignas(64) float unit[kMostWeights], scale[kMostWeights];
};

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

/// weights [blocks, kRows, kKeyTile] = p times factors for kCount blocks from b on, and vectors that have the largest
/// of a block and row among their lanes. A key without weight has the product 0 whatever its factor is.
template <int kRows, int kCount>
MPFA_BYTES_ATTR HWY_INLINE void weigh_blocks(const float* factors, std::int64_t b, const float* p, float* weights,
                                             std::uint32_t* tops) {
  factors += b * kKeyTile;
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t i = b * kRows + r;  // of block b
    __m512i top[kCount];
    for (__m512i& x : top) x = _mm512_setzero_si512();
    for (int j = 0; j < kKeyTile; j += 16) {
      const __m512 weight = _mm512_loadu_ps(p + r * kKeyTile + j);
      const __mmask16 some = _mm512_cmp_ps_mask(weight, _mm512_setzero_ps(), _CMP_NEQ_UQ);
      for (int n = 0; n < kCount; ++n) {
        const __m512 w = _mm512_maskz_mul_ps(some, weight, _mm512_loadu_ps(factors + n * kKeyTile + j));
        _mm512_storeu_ps(weights + (i + n * kRows) * kKeyTile + j, w);
        top[n] = _mm512_max_epu32(top[n], _mm512_castps_si512(w));
      }
    }
    for (int n = 0; n < kCount; ++n) _mm512_store_si512(tops + (i + n * kRows) * 16, top[n]);
  }
}

/// Fills weights [blocks, kRows, kKeyTile] and their scales. False when one is negative or not finite, or when all of a
/// row and block are so small that 16 bits of them are no normal float.
template <int kRows>
MPFA_BYTES_ATTR bool weigh(const WordRows& v, std::int64_t blocks, const float* p, float* weights, WeightScales& s) {
  constexpr std::uint32_t kInf = 0x7F800000, kSmallest = 0x0D800000;  // 2^-100
  alignas(64) std::uint32_t tops[(kMostWeights + 15) * 16];
  std::int64_t b = 0;
  for (; b + 4 <= blocks; b += 4) weigh_blocks<kRows, 4>(v.factors, b, p, weights, tops);
  for (; b + 2 <= blocks; b += 2) weigh_blocks<kRows, 2>(v.factors, b, p, weights, tops);
  for (; b < blocks; ++b) weigh_blocks<kRows, 1>(v.factors, b, p, weights, tops);
  const std::int64_t count = blocks * kRows;
  for (std::int64_t i = count; i % 16 != 0; ++i) _mm512_store_si512(tops + i * 16, _mm512_setzero_si512());
  __mmask16 bad = 0;
  const __m512 inverse = _mm512_set1_ps(1.0F / v.bytes->multiplier);
  for (std::int64_t i = 0; i < count; i += 16) {
    const __m512i top = lane_maxima(tops + i * 16);
    const __mmask16 some = _mm512_test_epi32_mask(top, top);
    bad |= _mm512_cmpge_epu32_mask(top, _mm512_set1_epi32(kInf));
    bad |= _mm512_mask_cmplt_epu32_mask(some, top, _mm512_set1_epi32(kSmallest));
    // A weight just below a power of two must not be rounded up to it.
    const __m512i exponent = _mm512_srli_epi32(_mm512_add_epi32(top, _mm512_set1_epi32(0x80)), 23);
    const __m512i above = _mm512_sub_epi32(exponent, _mm512_set1_epi32(15));
    const __m512i scale = _mm512_maskz_slli_epi32(some, above, 23);
    const __m512i unit = _mm512_maskz_slli_epi32(some, _mm512_sub_epi32(_mm512_set1_epi32(254), above), 23);
    _mm512_store_ps(s.scale + i, _mm512_mul_ps(_mm512_castsi512_ps(scale), inverse));
    _mm512_store_si512(s.unit + i, unit);
  }
  return bad == 0;
}

/// Where bytes of 16 pairs of 16-bit numbers go: [2 digits, quads of four keys, pair, 4 keys] from [key, pair, 2
/// digits] or, of one block, where the second of a pair is 16 keys further, [2 digits, pair, quads, 4 keys].
template <bool kPairs>
constexpr std::array<std::uint8_t, 64> digit_places() {
  std::array<std::uint8_t, 64> places{};
  for (int i = 0; i < 64; ++i) {
    const int digit = i / 32, quad = kPairs ? i / 8 % 4 : i / 4 % 4, second = kPairs ? i / 4 % 2 : i / 16 % 2;
    places[i] = static_cast<std::uint8_t>((quad * 4 + i % 4) * 4 + second * 2 + digit);
  }
  return places;
}

/// weights to digits, where they are: per block and row [2 pairs of 16 keys, 2 digits, 8 quads] or, of pairs of blocks,
/// per pair and row [4 times 16 keys, 2 digits, 4 quads, 2 blocks].
template <int kRows, bool kPairs>
MPFA_BYTES_ATTR void to_digits(std::int64_t blocks, float* weights, const float* unit) {
  static constexpr auto kPlaces = digit_places<kPairs>();
  constexpr __mmask32 kOdd = 0xAAAAAAAA;
  const __m512 magic = _mm512_set1_ps(0x1p23F);  // the lowest bits take the nearest integer
  const __m512i places = _mm512_loadu_si512(kPlaces.data());
  for (std::int64_t b = 0; b < blocks; b += kPairs ? 2 : 1) {
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t i = b * kRows + r;
      float* first = weights + i * kKeyTile;
      const float* second = kPairs ? first + kRows * kKeyTile : first + 16;
      const __m512 u = _mm512_set1_ps(unit[i]), u2 = _mm512_set1_ps(unit[kPairs ? i + kRows : i]);
      for (int n = 0; n < (kPairs ? 4 : 2); ++n) {
        const std::int64_t from = kPairs ? 16 * n : 32 * n;
        const __m512i low = _mm512_castps_si512(_mm512_fmadd_ps(_mm512_loadu_ps(first + from), u, magic));
        const __m512i high = _mm512_castps_si512(_mm512_fmadd_ps(_mm512_loadu_ps(second + from), u2, magic));
        const __m512i both = _mm512_mask_blend_epi16(kOdd, low, _mm512_slli_epi32(high, 16));
        _mm512_storeu_si512(first + 16 * n, _mm512_permutexvar_epi8(places, both));
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

/// 16 bytes of each of four rows in a row of 32 bytes: those `half` says.
MPFA_BYTES_ATTR HWY_INLINE __m512i narrow_rows(const std::byte* rows, __m512i half) {
  return _mm512_permutex2var_epi64(_mm512_loadu_si512(rows), half, _mm512_loadu_si512(rows + 64));
}

MPFA_BYTES_ATTR HWY_INLINE __m512i wide_rows(const std::byte* codes, std::int64_t stride) {
  const auto row = [&](std::int64_t i) MPFA_BYTES_ATTR {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i * stride));
  };
  __m512i bytes = _mm512_castsi128_si512(row(0));
  bytes = _mm512_mask_broadcast_i32x4(bytes, 0x00F0, row(1));
  bytes = _mm512_mask_broadcast_i32x4(bytes, 0x0F00, row(2));
  return _mm512_mask_broadcast_i32x4(bytes, 0xF000, row(3));
}

/// sum [2 digits, even and odd channels, rows] += the products of a group of the four keys of a quad, whose codes are
/// `bytes`.
template <int kRows, bool kPairs>
MPFA_BYTES_ATTR HWY_INLINE void add_quad(__m512i bytes, __m512i table, const float* digits,
                                         __m512i (&sum)[2][2][kRows]) {
  const __m512i even = _mm512_permutexvar_epi8(bytes, table);
  const __m512i odd = _mm512_permutexvar_epi8(_mm512_srli_epi16(bytes, 4), table);
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < 2; ++n) {
      const float* at = digits + r * kKeyTile + n * 8;
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

/// to = from + the sums of kGroupChannels channels, group g of the rows. Fetches kQuads lines of `next` each.
template <int kRows, bool kPairs, bool kNarrow>
MPFA_BYTES_ATTR void add_group(const WordRows& v, std::int64_t g, const std::byte* const (&next)[2],
                               const float* digits, const float* scale, const float* from, float* to,
                               std::int64_t stride) {
  static constexpr auto kOrder = quad_order<kPairs>();
  static constexpr auto kChannels = channel_order<kPairs>();
  const __m512i table = _mm512_loadu_si512(v.bytes->table.data()), order = _mm512_loadu_si512(kOrder.data());
  const __m512i half = _mm512_add_epi64(_mm512_set1_epi64(2 * g), _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13));
  const std::byte* codes = v.codes + (kNarrow ? 0 : g * kGroupBytes);
  __m512i sum[2][2][kRows] = {};
  for (std::int64_t q = 0; q < kQuads; q += 4) {
    for (const std::byte* line : next) {
      for (std::int64_t i = 0; i < 4; ++i) __builtin_prefetch(line + (q + i) * 64);
    }
    const float* at = digits + (kPairs ? 4 * q : q / 8 * 16 + q % 8);
    for (int i = 0; i < 4; ++i, codes += 4 * v.row_stride) {
      const __m512i rows = kNarrow ? narrow_rows(codes, half) : wide_rows(codes, v.row_stride);
      add_quad<kRows, kPairs>(_mm512_permutexvar_epi8(order, rows), table, at + (kPairs ? 2 * i : i), sum);
    }
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
  const bool narrow = groups == 2 && v.row_stride == 2 * kGroupBytes;
  const auto add = narrow ? add_group<kRows, kPairs, true> : add_group<kRows, kPairs, false>;
  for (std::int64_t g = 0; g < groups; ++g) {
    add(v, g, next, digits, scale, from + g * kGroupChannels, to + g * kGroupChannels, stride);
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
