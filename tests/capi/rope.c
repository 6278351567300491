/* Rotary embedding and context shift through the C ABI. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tests/capi/check.h"

enum { kTokens = 20, kHalf = kDim / 2, kRows = 40 };

void test_rope(void) {
  mpfa_recipe* recipe = recipe_of("k=f32,v=f32,p=f32");
  mpfa_cache_config config;
  mpfa_cache_config_init(&config, sizeof config);
  config.recipe = recipe;
  config.num_pages = 4;
  config.q_heads = kHeads;
  config.kv_heads = kKvHeads;
  config.head_dim = config.head_dim_v = kDim;
  mpfa_cache *cache = NULL, *fresh = NULL;
  CHECK(mpfa_cache_create(&config, &cache, &error) == MPFA_OK);
  CHECK(mpfa_cache_create(&config, &fresh, &error) == MPFA_OK);

  static float x[kTokens * kKvHeads * kDim], q[kHeads * kDim], q_out[kHeads * kDim], cosines[kRows * kHalf],
      sines[kRows * kHalf];
  for (int i = 0; i < kTokens * kKvHeads * kDim; ++i) x[i] = (float)(i % 7) - 3.0F;
  for (int i = 0; i < kHeads * kDim; ++i) q[i] = (float)(i % 5);
  for (int p = 0; p < kRows; ++p) {
    for (int i = 0; i < kHalf; ++i) {
      cosines[p * kHalf + i] = cosf((float)p / (float)(i + 1));
      sines[p * kHalf + i] = sinf((float)p / (float)(i + 1));
    }
  }
  mpfa_rope rope;
  mpfa_rope_init(&rope, sizeof rope);
  rope.style = MPFA_ROPE_INTERLEAVED;
  rope.cos = mpfa_contiguous(cosines, MPFA_F32, kRows, kHalf, 1, 1);
  rope.sin = mpfa_contiguous(sines, MPFA_F32, kRows, kHalf, 1, 1);
  const mpfa_tensor all = mpfa_contiguous(x, MPFA_F32, 1, kTokens, kKvHeads, kDim);
  CHECK(mpfa_cache_append_rope(cache, &all, &all, NULL, NULL, NULL, &rope, &error) == MPFA_OK);
  /* Tokens 0..4 and 9..19: the latter were rotated at 4 positions more. */
  CHECK(mpfa_cache_remove(cache, 0, 5, 9, &rope, &error) == MPFA_OK);
  const mpfa_tensor head = mpfa_contiguous(x, MPFA_F32, 1, 5, kKvHeads, kDim);
  const mpfa_tensor tail = mpfa_contiguous(x + 9 * kKvHeads * kDim, MPFA_F32, 1, 11, kKvHeads, kDim);
  const int64_t at[1] = {3};
  CHECK(mpfa_cache_append_rope(fresh, &head, &head, NULL, NULL, NULL, &rope, &error) == MPFA_OK);
  rope.q = mpfa_contiguous(q, MPFA_F32, 1, 1, kHeads, kDim);
  rope.q_out = mpfa_contiguous(q_out, MPFA_F32, 1, 1, kHeads, kDim);
  rope.q_positions = at;
  CHECK(mpfa_cache_append_rope(fresh, &tail, &tail, NULL, NULL, NULL, &rope, &error) == MPFA_OK);
  CHECK_NEAR(q_out[0], q[0] * cosf(3.0F) - q[1] * sinf(3.0F), 1e-6);
  CHECK_REFUSED(mpfa_cache_shift(fresh, 0, 0, 1, &rope, &error), MPFA_INVALID_ARGUMENT, "rope.q is given");
  rope.q.data = NULL;
  CHECK(mpfa_cache_shift(fresh, 0, 0, 2, &rope, &error) == MPFA_OK);
  CHECK(mpfa_cache_shift(fresh, 0, 0, -2, &rope, &error) == MPFA_OK);
  mpfa_cache_view a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
  CHECK(mpfa_cache_get_view(cache, &a, &error) == MPFA_OK && mpfa_cache_get_view(fresh, &b, &error) == MPFA_OK);
  CHECK(a.lengths[0] == 16 && b.lengths[0] == 16);
  for (int i = 0; i < 16 * kDim; ++i) CHECK_NEAR(((const float*)a.k.data)[i], ((const float*)b.k.data)[i], 2e-6);
  CHECK(memcmp(a.v.data, b.v.data, 16 * kDim * sizeof(float)) == 0);
  CHECK(mpfa_cache_remove(cache, 0, 2, 3, NULL, &error) == MPFA_OK);

  const int64_t slots[1] = {3 * 64}, positions[1] = {kRows};
  const mpfa_tensor one = mpfa_contiguous(x, MPFA_F32, 1, 1, kKvHeads, kDim);
  CHECK_REFUSED(mpfa_cache_write_slots_rope(cache, &one, &one, slots, 1, &rope, &error), MPFA_INVALID_ARGUMENT,
                "rope.positions is null");
  rope.positions = positions;
  CHECK_REFUSED(mpfa_cache_write_slots_rope(cache, &one, &one, slots, 1, &rope, &error), MPFA_OUT_OF_RANGE, "0..39");
  rope.positions = at;
  CHECK(mpfa_cache_write_slots_rope(cache, &one, &one, slots, 1, &rope, &error) == MPFA_OK);
  CHECK_REFUSED(mpfa_cache_shift(cache, 0, 0, 1, NULL, &error), MPFA_INVALID_ARGUMENT, "rope is NULL");
  CHECK_REFUSED(mpfa_cache_remove(cache, 0, 3, 2, &rope, &error), MPFA_OUT_OF_RANGE, "0..15");
  rope.style = 5;
  CHECK_REFUSED(mpfa_cache_shift(cache, 0, 0, 1, &rope, &error), MPFA_INVALID_ARGUMENT, "style is 5");
  rope.struct_size = 8;
  CHECK_REFUSED(mpfa_cache_append_rope(cache, &one, &one, NULL, NULL, NULL, &rope, &error), MPFA_INVALID_ARGUMENT,
                "struct_size");
  mpfa_cache_destroy(fresh);
  mpfa_cache_destroy(cache);
  mpfa_recipe_destroy(recipe);
}
