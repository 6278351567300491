// Words of 4 bytes of some keys, transposed, so that a vector holds one word of adjoining keys. Included once per
// instruction set.

/// 16 bytes of each fourth of kVector keys, from `offset` on.
HWY_INLINE W every_fourth(const std::byte* const (&fourth)[4], std::int64_t offset) {
  const DU du;
  const auto bytes = [&](int i) HWY_ATTR {
    return hn::LoadDup128(du, reinterpret_cast<const std::uint32_t*>(fourth[i] + offset));
  };
  const W low = hn::OddEvenBlocks(bytes(1), bytes(0));
  if constexpr (kVector == 16) {
    return hn::ConcatUpperLower(du, hn::OddEvenBlocks(bytes(3), bytes(2)), low);
  } else {
    return low;
  }
}

/// kVector rows of words, transposed: out[i * kGroups * kVector + j] = word i of key j.
void transpose_rows(const std::byte* rows, std::int64_t stride, std::int64_t words, std::uint32_t* out) {
  const DU du;
  const hn::Repartition<std::uint64_t, DU> pairs;
  constexpr std::size_t kLine = kGroups * kVector;
  const std::byte* fourth[4];  // two of them with vectors of 8
  fourth[0] = rows;
  for (int i = 1; i < 4; ++i) fourth[i] = fourth[i - 1] + 4 * stride;
  for (std::int64_t w = 0; w < words; w += 4, out += 4 * kLine) {
    const W a = every_fourth(fourth, 0), b = every_fourth(fourth, stride);
    const W c = every_fourth(fourth, 2 * stride), d = every_fourth(fourth, 3 * stride);
    for (const std::byte*& at : fourth) at += 16;
    const auto ab = hn::BitCast(pairs, hn::InterleaveLower(du, a, b));
    const auto cd = hn::BitCast(pairs, hn::InterleaveLower(du, c, d));
    const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(du, a, b));
    const auto cd_high = hn::BitCast(pairs, hn::InterleaveUpper(du, c, d));
    hn::Store(hn::BitCast(du, hn::InterleaveLower(pairs, ab, cd)), du, out);
    hn::Store(hn::BitCast(du, hn::InterleaveUpper(pairs, ab, cd)), du, out + kLine);
    hn::Store(hn::BitCast(du, hn::InterleaveLower(pairs, ab_high, cd_high)), du, out + 2 * kLine);
    hn::Store(hn::BitCast(du, hn::InterleaveUpper(pairs, ab_high, cd_high)), du, out + 3 * kLine);
  }
}

#if HWY_TARGET <= HWY_AVX3
/// The same for rows of 8 words that follow each other.
void transpose_narrow(const std::byte* rows, std::uint32_t* out) {
  constexpr std::int64_t kLine = kGroups * kVector;
  // From two keys [2, 8 words] each to [4 words, 4 keys], and from there to [2 words, 8 keys]; the second two or four
  // words are further by a constant.
  const __m512i by_four = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  const __m512i by_eight = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i later_four = _mm512_add_epi32(by_four, _mm512_set1_epi32(4));
  const __m512i later_eight = _mm512_add_epi32(by_eight, _mm512_set1_epi32(8));
  __m512i eight[2][4];
  for (int i = 0; i < 2; ++i, rows += 256) {
    __m512i four[2][2];
    for (int n = 0; n < 2; ++n) {
      const __m512i a = _mm512_loadu_si512(rows + 128 * n), b = _mm512_loadu_si512(rows + 128 * n + 64);
      four[0][n] = _mm512_permutex2var_epi32(a, by_four, b);
      four[1][n] = _mm512_permutex2var_epi32(a, later_four, b);
    }
    for (int n = 0; n < 2; ++n) {
      eight[i][2 * n] = _mm512_permutex2var_epi32(four[n][0], by_eight, four[n][1]);
      eight[i][2 * n + 1] = _mm512_permutex2var_epi32(four[n][0], later_eight, four[n][1]);
    }
  }
  for (int n = 0; n < 4; ++n) {
    _mm512_store_si512(out + 2 * n * kLine, _mm512_shuffle_i32x4(eight[0][n], eight[1][n], 0x44));
    _mm512_store_si512(out + (2 * n + 1) * kLine, _mm512_shuffle_i32x4(eight[0][n], eight[1][n], 0xEE));
  }
}
#endif

/// The same for fewer rows: lanes past the last one get words of zeros.
HWY_NOINLINE void transpose_few(const WordRows& k, std::int64_t first, std::int64_t keys, std::uint32_t* out) {
  HWY_ALIGN std::byte rows[kVector * kMostWords * 4] = {};
  const std::int64_t bytes = k.words * 4;
  for (std::int64_t j = 0; j < keys; ++j) {
    std::memcpy(rows + j * bytes, k.codes + (first + j) * k.row_stride, static_cast<std::size_t>(bytes));
  }
  transpose_rows(rows, bytes, k.words, out);
}
