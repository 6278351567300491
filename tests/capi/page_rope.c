/* K turned and written to pages of the caller without V, as latent caches have it, and q turned in the same call: the
 * bytes of a cache with shared_kv. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tests/capi/check.h"

enum { kPages = 4, kPageSize = 16, kTokens = 20, kHalf = 4, kBegin = 24 };

void test_page_rope(void) {
  static float x[kTokens * kKvHeads * kDim], q[kTokens * kHeads * kDim], q_out[2][kTokens * kHeads * kDim];
  static float cosines[kTokens * kHalf], sines[kTokens * kHalf];
  static unsigned char data[kPages * kPageSize * kKvHeads * kDim / 2], scales[kPages * kPageSize * kKvHeads];
  int64_t slots[kTokens], positions[kTokens];
  for (int i = 0; i < kTokens * kKvHeads * kDim; ++i) x[i] = (float)((i * 37) % 101) / 50.0f - 1.0f;
  for (int i = 0; i < kTokens * kHeads * kDim; ++i) q[i] = (float)((i * 17) % 23) / 9.0f - 1.0f;
  for (int i = 0; i < kTokens * kHalf; ++i) cosines[i] = cosf(0.3f * (float)i), sines[i] = sinf(0.3f * (float)i);
  for (int t = 0; t < kTokens; ++t) slots[t] = kPageSize + t, positions[t] = (t * 7) % kTokens;
  mpfa_cache_config config;
  mpfa_cache_config_init(&config, sizeof config);
  mpfa_recipe* recipe = recipe_of("mxfp4,centre=none");
  config.recipe = recipe;
  config.num_pages = kPages;
  config.page_size = kPageSize;
  config.q_heads = kHeads;
  config.kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.head_dim_v = kBegin;
  config.shared_kv = 1;
  mpfa_pages pages;
  mpfa_pages_init(&pages, sizeof pages);
  pages.format = "mxfp4";
  pages.num_pages = kPages;
  pages.page_size = kPageSize;
  pages.kv_heads = kKvHeads;
  pages.head_dim = kDim;
  CHECK(mpfa_pages_dense(&pages, "hnd", &error) == MPFA_OK);
  pages.data = data;
  pages.scales = scales;
  mpfa_rope rope;
  mpfa_rope_init(&rope, sizeof rope);
  rope.style = MPFA_ROPE_INTERLEAVED;
  rope.begin = kBegin;
  rope.cos = mpfa_contiguous(cosines, MPFA_F32, kTokens, kHalf, 1, 1);
  rope.sin = mpfa_contiguous(sines, MPFA_F32, kTokens, kHalf, 1, 1);
  rope.q = mpfa_contiguous(q, MPFA_F32, 1, kTokens, kHeads, kDim);
  rope.q_out = mpfa_contiguous(q_out[0], MPFA_F32, 1, kTokens, kHeads, kDim);
  const mpfa_tensor k = mpfa_contiguous(x, MPFA_F32, 1, kTokens, kKvHeads, kDim);
  CHECK_REFUSED(mpfa_pages_write(&config, &pages, NULL, &k, NULL, slots, MPFA_I64, kTokens, &rope, NULL, &error),
                MPFA_INVALID_ARGUMENT, "rope.positions is null");
  rope.positions = positions;
  CHECK_REFUSED(mpfa_pages_write(&config, &pages, &pages, &k, NULL, slots, MPFA_I64, kTokens, &rope, NULL, &error),
                MPFA_INVALID_ARGUMENT, "pass k alone");
  CHECK(mpfa_pages_write(&config, &pages, NULL, &k, NULL, slots, MPFA_I64, kTokens, &rope, NULL, &error) == MPFA_OK);
  mpfa_cache* cache = NULL;
  CHECK(mpfa_cache_create(&config, &cache, &error) == MPFA_OK);
  rope.q_out.data = q_out[1];
  CHECK(mpfa_cache_write_slots_rope(cache, &k, NULL, slots, kTokens, &rope, &error) == MPFA_OK);
  CHECK(memcmp(q_out[0], q_out[1], sizeof q_out[0]) == 0 && memcmp(q_out[0], q, sizeof q) != 0);
  mpfa_cache_view view = {.struct_size = sizeof view};
  CHECK(mpfa_cache_get_view(cache, &view, &error) == MPFA_OK);
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kKvHeads; ++h) {
      const int64_t page = slots[t] / kPageSize, slot = slots[t] % kPageSize;
      const int64_t row = (page * kKvHeads + h) * kPageSize + slot; /* hnd */
      CHECK(memcmp(data + row * kDim / 2,
                   (const char*)view.k.data + page * view.k.data_page_stride + h * view.k.data_head_stride +
                       slot * view.k.data_row_stride,
                   kDim / 2) == 0);
      CHECK(scales[row] ==
            ((const unsigned char*)view.k.scales)[page * view.k.scale_page_stride + h * view.k.scale_head_stride +
                                                  slot * view.k.scale_row_stride]);
    }
  }
  config.shared_kv = 0;
  CHECK_REFUSED(mpfa_pages_write(&config, &pages, &pages, &k, NULL, slots, MPFA_I64, kTokens, NULL, NULL, &error),
                MPFA_INVALID_ARGUMENT, "v is NULL");
  mpfa_cache_destroy(cache);
  mpfa_recipe_destroy(recipe);
}
