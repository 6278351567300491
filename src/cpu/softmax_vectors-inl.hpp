// Softmax of a tile in vectors of 16 floats, with P in float32 or bf16: four rows share their reductions, and one
// instruction puts the exponent of a probability in, so that little waits for anything. Included once per instruction
// set.

#if HWY_TARGET <= HWY_AVX3
struct MaxOf {
  HWY_INLINE __m512 operator()(__m512 a, __m512 b) const { return _mm512_max_ps(a, b); }
};
struct SumOf {
  HWY_INLINE __m512 operator()(__m512 a, __m512 b) const { return _mm512_add_ps(a, b); }
};

/// to[r]: what `op` makes of all lanes of x[r].
template <class Op>
HWY_INLINE void reduce_rows(const __m512 (&x)[4], const Op& op, float* to) {
  const __m512d ab = _mm512_castps_pd(op(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1])));
  const __m512d cd = _mm512_castps_pd(op(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3])));
  __m512 all = op(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  all = op(all, _mm512_shuffle_f32x4(all, all, 0x4E));
  all = op(all, _mm512_shuffle_f32x4(all, all, 0xB1));
  _mm_store_ps(to, _mm512_castps512_ps128(all));
}

/// 2^f for f in [0, 1): exactly 1 at 0, relative error below 2e-7.
HWY_INLINE __m512 exp2_of_fraction(__m512 f) {
  __m512 p = _mm512_set1_ps(0x1.e97512p-10F);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.27784ap-7F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c91ceap-5F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebdb56p-3F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e4bap-1F));
  return _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0F));
}

/// One row to rounded probabilities; returns sums whose lanes are the denominator. Below 2^-126 a probability is 0, and
/// a NaN stays one.
template <PMode kMode>
HWY_INLINE __m512 round_vectors(const SoftmaxStep& step, float top, float* x) {
  constexpr int kDown = 0x09, kNotBelow = _CMP_NLT_UQ;
  const __m512 to_bf16 = _mm512_set1_ps(0x1.8p16F);  // a sum with it has no bits below those of a bf16 in [1, 2]
  __m512 sum = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < kKeyTile; i += 16) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(step.scale));
    const __m512 log2_p = _mm512_sub_ps(scaled, _mm512_set1_ps(top));
    const __mmask16 some = _mm512_cmp_ps_mask(log2_p, _mm512_set1_ps(-126.0F), kNotBelow);
    const __m512 p = exp2_of_fraction(_mm512_reduce_ps(log2_p, kDown));
    const __m512 exact = _mm512_maskz_scalef_ps(some, p, log2_p);
    __m512 rounded = exact;
    if constexpr (kMode == PMode::bf16) {
      rounded = _mm512_maskz_scalef_ps(some, _mm512_sub_ps(_mm512_add_ps(p, to_bf16), to_bf16), log2_p);
    }
    _mm512_storeu_ps(x + i, rounded);
    sum = _mm512_add_ps(sum, step.same_codes ? rounded : exact);
  }
  return sum;
}

template <PMode kMode, int kRows>
void softmax_pass(const SoftmaxStep& step, float* x, float* m, float* l, float* keep) {
  __m512 best[4], sum[4];
  alignas(16) float all[4];
  for (int r = 0; r < 4; ++r) {
    best[r] = _mm512_set1_ps(kNoKey);
    sum[r] = _mm512_setzero_ps();
    for (std::int64_t i = 0; r < kRows && i < kKeyTile; i += 16) {
      best[r] = _mm512_max_ps(_mm512_loadu_ps(x + r * kKeyTile + i), best[r]);  // the second where one is a NaN
    }
  }
  reduce_rows(best, MaxOf(), all);
  for (int r = 0; r < kRows; ++r) keep[r] = raise_top(all[r] * step.scale, m[r]);
  for (int r = 0; r < kRows; ++r) {
    if (m[r] == kNoKey) {
      sum[r] = _mm512_set1_ps(without_maximum(x + r * kKeyTile));
      std::fill_n(x + r * kKeyTile, kKeyTile, 0.0F);
    } else {
      sum[r] = round_vectors<kMode>(step, m[r], x + r * kKeyTile);
    }
  }
  reduce_rows(sum, SumOf(), all);
  for (int r = 0; r < kRows; ++r) l[r] = l[r] * keep[r] + all[r];
}

template <PMode kMode>
void softmax_vectors(const SoftmaxStep& step, std::int64_t rows, float* x, float* m, float* l, float* keep) {
  for (; rows >= 4; rows -= 4, x += 4 * kKeyTile, m += 4, l += 4, keep += 4) {
    softmax_pass<kMode, 4>(step, x, m, l, keep);
  }
  if (rows == 3) return softmax_pass<kMode, 3>(step, x, m, l, keep);
  if (rows == 2) return softmax_pass<kMode, 2>(step, x, m, l, keep);
  if (rows == 1) softmax_pass<kMode, 1>(step, x, m, l, keep);
}
#endif
