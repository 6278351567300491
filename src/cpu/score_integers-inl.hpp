// Scores of 4-bit codes whose elements are whole numbers, by dot products of bytes: three signed digits of a query,
// base 256 and relative to the largest element of its run of words, hold 24 bits, as many as a float. The lowest digits
// are left out where they are 0 or cannot change a score by more than the caller allows, which is the rule for bf16
// queries. Included once per instruction set.

const std::int32_t* pack_integers(const WordRows& k, std::int64_t rows, const float* q, float slack, float* memory);
void score_integers(const WordRows& k, std::int64_t keys, std::int64_t rows, const std::uint32_t* words,
                    const std::int32_t* q, const float* factors, float* s);

#if HWY_TARGET <= HWY_AVX3
constexpr int kDigits = 3;  // from the highest

/// The largest integer whose three digits are signed bytes.
constexpr float kLargest = 127 * 65536 + 127 * 256 + 127;

constexpr float kBias = 0x1.8p23F;

/// What a pass needs of a run of words, one after the other: how many words have lowest digits that are not all 0,
/// these words, the float factor of a key up to which a row leaves its lowest digits out [rows] and the least of these,
/// starts of the sums (what the offset of the codes adds, taken off) and float scales [digits, rows], what takes the
/// bias of the two higher digits off [rows], then per word of the run these digits [2 halves, 2, rows] and the lowest
/// [2 halves, rows], four bytes each. Half 0 has the even channels. Sums of the higher digits start at kBias, the bits
/// of a float with integer steps: they are floats from the start, and need no conversion.
struct RunLayout {
  std::int64_t run, rows;
  [[nodiscard]] constexpr std::int64_t limits() const { return 1 + run; }
  [[nodiscard]] constexpr std::int64_t least() const { return limits() + rows; }
  [[nodiscard]] constexpr std::int64_t starts() const { return least() + 1; }
  [[nodiscard]] constexpr std::int64_t scales() const { return starts() + kDigits * rows; }
  [[nodiscard]] constexpr std::int64_t unbias() const { return scales() + kDigits * rows; }
  [[nodiscard]] constexpr std::int64_t high() const { return unbias() + rows; }
  [[nodiscard]] constexpr std::int64_t low() const { return high() + 4 * rows * run; }
  [[nodiscard]] constexpr std::int64_t size() const { return low() + 2 * rows * run; }
};

/// Where the digits of 16 channels go: [2 words, 2 halves, kDigits and a spare, 4 channels] from [channels, bytes],
/// whose bytes are the digits from the lowest.
constexpr std::array<std::uint8_t, 64> digit_order() {
  std::array<std::uint8_t, 64> order{};
  for (int i = 0; i < 64; ++i) {
    const int word = i / 32, half = i / 16 % 2, digit = i / 4 % 4, channel = word * 8 + i % 4 * 2 + half;
    order[i] = static_cast<std::uint8_t>(4 * channel + (digit < kDigits ? kDigits - 1 - digit : kDigits));
  }
  return order;
}

/// Row r of a run; the lowest digits may change a product with elements of at most 1 / multiplier by `slack`. Marks the
/// words whose lowest digits are not all 0. False when an element is not finite or out of proportion.
MPFA_BYTES_ATTR inline bool pack_row(const RunLayout& at, const ByteCodes& codes, const float* x, std::int64_t r,
                                     std::int32_t* out, float slack, bool* marks) {
  constexpr std::int64_t kChannels = 16;  // of a vector: two words
  static constexpr auto kOrder = digit_order();
  const std::int64_t channels = at.run * 8;
  __m512i bits = _mm512_setzero_si512();
  for (std::int64_t c = 0; c < channels; c += kChannels) {
    bits = _mm512_max_epu32(bits, _mm512_and_si512(_mm512_loadu_si512(x + c), _mm512_set1_epi32(0x7FFFFFFF)));
  }
  const auto top = std::bit_cast<float>(_mm512_reduce_max_epu32(bits));
  if (top != 0.0F && !(top > 0x1p-100F && top < 0x1p100F)) return false;
  int shift = top == 0.0F ? 0 : 22 - formats::floor_log2(top);
  if (top * formats::power_of_two(shift) > kLargest) --shift;
  const __m512 unit = _mm512_set1_ps(formats::power_of_two(shift));
  std::int32_t sum[kDigits] = {}, size = 0;
  for (std::int64_t c = 0; c < channels; c += kChannels) {
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + c), unit));
    const __m512i half = _mm512_set1_epi32(0x808080);
    const __m512i digits = _mm512_xor_si512(_mm512_add_epi32(whole, half), half);
    alignas(64) std::int32_t four[16], sums[16], sizes[16];
    const __m512i ordered = _mm512_permutexvar_epi8(_mm512_loadu_si512(kOrder.data()), digits);
    _mm512_store_si512(four, ordered);
    _mm512_store_si512(sums, _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), ordered));
    _mm512_store_si512(sizes,
                       _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_abs_epi8(ordered), _mm512_set1_epi8(1)));
    for (std::int64_t i = 0; i < 4; ++i) {  // words and halves
      const std::int64_t place = c / 4 + i;
      out[at.high() + 2 * place * at.rows + r] = four[4 * i];
      out[at.high() + (2 * place + 1) * at.rows + r] = four[4 * i + 1];
      out[at.low() + place * at.rows + r] = four[4 * i + 2];
      for (int n = 0; n < kDigits; ++n) sum[n] += sums[4 * i + n];
      size += sizes[4 * i + kDigits - 1];
      marks[place / 2] |= sizes[4 * i + kDigits - 1] != 0;
    }
  }
  float limit = std::numeric_limits<float>::infinity();
  for (int n = 0; n < kDigits; ++n) {
    const std::int32_t bias = n < kDigits - 1 ? std::bit_cast<std::int32_t>(kBias) : 0;
    out[at.starts() + n * at.rows + r] = bias - codes.offset * sum[n];
    const float scale = formats::power_of_two(8 * (kDigits - 1 - n)) * formats::power_of_two(-shift) / codes.multiplier;
    out[at.scales() + n * at.rows + r] = std::bit_cast<std::int32_t>(scale);
    if (n == kDigits - 1 && size != 0) limit = slack / (static_cast<float>(size) * scale);
    if (n == kDigits - 1) out[at.unbias() + r] = std::bit_cast<std::int32_t>(-kBias * (65536.0F + 256.0F) * scale);
  }
  out[at.limits() + r] = std::bit_cast<std::int32_t>(limit);
  return true;
}

/// The table of ByteCodes, then runs. Null when the codes or the queries do not allow it.
const std::int32_t* pack_integers(const WordRows& k, std::int64_t rows, const float* q, float slack, float* memory) {
  const std::int64_t run = words_of_run(k);
  if (k.code != formats::WordCode::table16 || !have_bytes() || (run != 4 && run != 2)) return nullptr;
  const std::optional<ByteCodes> codes = byte_codes(k.table);
  if (!codes) return nullptr;
  std::memcpy(memory, codes->table.data(), sizeof(codes->table));
  auto* out = reinterpret_cast<std::int32_t*>(memory) + sizeof(codes->table) / 4;
  float largest = 0.0F;  // of the elements, times the multiplier
  for (const std::uint8_t code : codes->table)
    largest = std::max(largest, std::abs(static_cast<float>(code) - static_cast<float>(codes->offset)));
  slack /= largest * static_cast<float>(k.words / run);
  bool fits = true;
  for_passes(rows, [&](std::int64_t count, std::int64_t first) {
    const RunLayout at{run, count};
    for (std::int64_t w = 0; w < k.words; w += at.run, out += at.size()) {
      bool marks[4] = {};
      for (std::int64_t r = 0; r < count; ++r)
        fits &= pack_row(at, *codes, q + (first + r) * k.words * 8 + w * 8, r, out, slack, marks);
      out[at.least()] = *std::min_element(out + at.limits(), out + at.limits() + count);  // as floats: none is negative
      out[0] = 0;
      for (std::int64_t i = 0; i < at.run; ++i) {
        if (marks[i]) out[1 + out[0]++] = static_cast<std::int32_t>(i);
      }
    }
  });
  return fits ? reinterpret_cast<const std::int32_t*>(memory) : nullptr;
}

template <int kRows, int kCount>
MPFA_BYTES_ATTR HWY_INLINE void start_sums(const std::int32_t* starts, __m512i (&sum)[kGroups][kCount][kRows]) {
  for (int n = 0; n < kCount; ++n) {
    for (int r = 0; r < kRows; ++r) {
      sum[0][n][r] = _mm512_set1_epi32(starts[n * kRows + r]);
      for (int g = 1; g < kGroups; ++g) sum[g][n][r] = sum[0][n][r];
    }
  }
}

/// sum += digits [2 halves, kCount, kRows] of the channels of a word, times the bytes of its codes.
template <int kRows, int kCount>
MPFA_BYTES_ATTR HWY_INLINE void add_word(const std::uint32_t* words, __m512i table, const std::int32_t* digits,
                                         __m512i (&sum)[kGroups][kCount][kRows]) {
  __m512i bytes[kGroups][2];
  for (int g = 0; g < kGroups; ++g) {
    const __m512i word = _mm512_load_si512(words + g * kVector);
    bytes[g][0] = _mm512_permutexvar_epi8(word, table);
    bytes[g][1] = _mm512_permutexvar_epi8(_mm512_srli_epi32(word, 4), table);
  }
  for (int half = 0; half < 2; ++half) {
    for (int n = 0; n < kCount; ++n) {
      for (int r = 0; r < kRows; ++r) {
        const __m512i digit = _mm512_set1_epi32(digits[(half * kCount + n) * kRows + r]);
        for (int g = 0; g < kGroups; ++g) sum[g][n][r] = _mm512_dpbusd_epi32(sum[g][n][r], bytes[g][half], digit);
      }
    }
  }
}

/// x = scaled sums of the two higher digits, exactly.
template <int kRun, int kRows>
MPFA_BYTES_ATTR HWY_INLINE void scale_high(const __m512i (&sum)[kGroups][2][kRows], const std::int32_t* q,
                                           __m512 (&x)[kGroups][kRows]) {
  constexpr RunLayout at{kRun, kRows};
  const auto all = [&](std::int64_t i) MPFA_BYTES_ATTR { return _mm512_castsi512_ps(_mm512_set1_epi32(q[i])); };
  for (int r = 0; r < kRows; ++r) {
    const __m512 high = all(at.scales() + r), middle = all(at.scales() + kRows + r), unbias = all(at.unbias() + r);
    for (int g = 0; g < kGroups; ++g) {
      x[g][r] = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[g][0][r]), high, unbias);
      x[g][r] = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[g][1][r]), middle, x[g][r]);
    }
  }
}

/// x += the products of the lowest digits, of keys and rows where they matter: what becomes of a pair depends on
/// nothing else.
template <int kRun, int kRows>
MPFA_BYTES_ATTR HWY_INLINE void add_low(const std::uint32_t* words, __m512i table, const std::int32_t* q,
                                        const __m512 (&factor)[kGroups], __m512 (&x)[kGroups][kRows]) {
  constexpr RunLayout at{kRun, kRows};
  // As bits, so that a negative factor or a NaN is above every limit.
  const auto above = [&](int g, std::int32_t limit) MPFA_BYTES_ATTR {
    return _mm512_cmpgt_epu32_mask(_mm512_castps_si512(factor[g]), _mm512_set1_epi32(limit));
  };
  __mmask16 any = 0;
  for (int g = 0; g < kGroups; ++g) any |= above(g, q[at.least()]);
  if (any == 0) return;
  __m512i low[kGroups][1][kRows];
  start_sums(q + at.starts() + 2 * kRows, low);
  for (std::int32_t i = 0; i < q[0]; ++i) {
    add_word(words + q[1 + i] * kGroups * kVector, table, q + at.low() + q[1 + i] * 2 * kRows, low);
  }
  for (int r = 0; r < kRows; ++r) {
    const __m512 scale = _mm512_castsi512_ps(_mm512_set1_epi32(q[at.scales() + 2 * kRows + r]));
    for (int g = 0; g < kGroups; ++g) {
      const __mmask16 matter = above(g, q[at.limits() + r]);
      x[g][r] = _mm512_mask3_fmadd_ps(_mm512_cvtepi32_ps(low[g][0][r]), scale, x[g][r], matter);
    }
  }
}

/// kGroups vectors of keys against kRows queries. Returns the end of their digits.
template <int kRun, int kRows>
MPFA_BYTES_ATTR const std::int32_t* score_bytes(const WordRows& k, std::int64_t keys, const std::uint32_t* words,
                                                const std::int32_t* codes, const std::int32_t* q, const float* factors,
                                                float* s) {
  const __m512i table = _mm512_loadu_si512(codes);
  constexpr std::int64_t kLine = kGroups * kVector;
  constexpr RunLayout at{kRun, kRows};
  std::int64_t in_block = 0;
  __m512 total[kGroups][kRows];  // an initialiser would become a loop over memory
  for (auto& row : total) {
    for (__m512& t : row) t = _mm512_setzero_ps();
  }
  for (std::int64_t w = 0; w < k.words; w += at.run, words += at.run * kLine, q += at.size()) {
    __m512 x[kGroups][kRows];
    __m512i high[kGroups][2][kRows];
    start_sums(q + at.starts(), high);
    for (std::int64_t i = 0; i < at.run; ++i) {
      add_word(words + i * kLine, table, q + at.high() + i * 4 * kRows, high);
    }
    scale_high<kRun, kRows>(high, q, x);
    __m512 factor[kGroups];
    for (int g = 0; g < kGroups; ++g) factor[g] = _mm512_loadu_ps(factors + g * kVector);
    if (q[0] != 0) add_low<kRun, kRows>(words, table, q, factor, x);
    for (int g = 0; g < kGroups; ++g) {
      for (int r = 0; r < kRows; ++r) total[g][r] = _mm512_fmadd_ps(x[g][r], factor[g], total[g][r]);
    }
    in_block += at.run;
    if (in_block == k.block_words) {
      in_block = 0;
      factors += kKeyTile;
    }
  }
  for (int g = 0; g < kGroups; ++g) {
    for (int r = 0; r < kRows; ++r) store_scores(V{total[g][r]}, keys - g * kVector, s + r * kKeyTile + g * kVector);
  }
  return q;
}

template <int kRun>
void score_runs(const WordRows& k, std::int64_t keys, std::int64_t rows, const std::uint32_t* words,
                const std::int32_t* q, const float* factors, float* s) {
  const std::int32_t* const codes = q;
  q += sizeof(ByteCodes::table) / 4;
  for_passes(rows, [&](std::int64_t count, std::int64_t first) {
    float* out = s + first * kKeyTile;
    switch (count) {
      case 4: q = score_bytes<kRun, 4>(k, keys, words, codes, q, factors, out); break;
      case 3: q = score_bytes<kRun, 3>(k, keys, words, codes, q, factors, out); break;
      case 2: q = score_bytes<kRun, 2>(k, keys, words, codes, q, factors, out); break;
      default: q = score_bytes<kRun, 1>(k, keys, words, codes, q, factors, out); break;
    }
  });
}

void score_integers(const WordRows& k, std::int64_t keys, std::int64_t rows, const std::uint32_t* words,
                    const std::int32_t* q, const float* factors, float* s) {
  if (words_of_run(k) == 4) return score_runs<4>(k, keys, rows, words, q, factors, s);
  score_runs<2>(k, keys, rows, words, q, factors, s);
}
#endif
