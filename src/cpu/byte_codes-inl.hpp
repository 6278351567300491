// Elements of 4-bit codes as whole numbers in bytes, for dot products of bytes. Included once per instruction set.

#if HWY_TARGET <= HWY_AVX3
constexpr bool kMayHaveBytes = true;
#define MPFA_BYTES_ATTR __attribute__((target(HWY_TARGET_STR ",avx512vbmi,avx512vnni")))

/// Not every machine of this instruction set has these two extensions.
inline bool have_bytes() {
  return __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
}

/// sum += dot products of four unsigned bytes by four signed ones. With the intrinsic, compilers copy every sum of a
/// loop.
MPFA_BYTES_ATTR HWY_INLINE __m512i add_dots(__m512i sum, __m512i a, __m512i b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

/// The same of two signed numbers of 16 bits by two.
MPFA_BYTES_ATTR HWY_INLINE __m512i add_word_dots(__m512i sum, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

/// Codes as unsigned bytes: element(code) * multiplier + offset. Without the offset they are signed bytes.
struct ByteCodes {
  float multiplier = 1.0F;
  int offset = 0;
  std::array<std::uint8_t, 64> table{};  // the 16 codes, repeated: bits above a code need no mask
};

HWY_INLINE std::optional<ByteCodes> byte_codes(const float* elements) {
  for (const float multiplier : {1.0F, 2.0F, 4.0F}) {
    float low = 0.0F, high = 0.0F;
    bool whole = true;
    for (int i = 0; i < 16; ++i) {
      const float e = elements[i] * multiplier;
      whole &= e == std::nearbyint(e);
      low = std::min(low, e), high = std::max(high, e);
    }
    if (!whole || high > 127.0F || high - low > 128.0F) continue;
    ByteCodes codes{multiplier, static_cast<int>(-low), {}};
    for (int i = 0; i < 64; ++i) {
      codes.table[i] = static_cast<std::uint8_t>(static_cast<int>(elements[i % 16] * multiplier) + codes.offset);
    }
    return codes;
  }
  return std::nullopt;
}
#else
constexpr bool kMayHaveBytes = false;
#endif
