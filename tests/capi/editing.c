/* Cache editing through the C ABI: fork, truncate, save and load, slots, and their refusals. */
#include <stdint.h>
#include <string.h>

#include "tests/capi/check.h"

void test_editing(void) {
  mpfa_recipe* recipe = recipe_of("nvfp4,centre=none");
  mpfa_cache_config config;
  mpfa_cache_config_init(&config, sizeof config);
  config.recipe = recipe;
  config.batch = 3;
  config.num_pages = 4;
  config.q_heads = kHeads;
  config.kv_heads = kKvHeads;
  config.head_dim = config.head_dim_v = kDim;
  mpfa_cache* cache = NULL;
  CHECK(mpfa_cache_create(&config, &cache, &error) == MPFA_OK);
  static float x[100 * kKvHeads * kDim];
  for (int i = 0; i < 100 * kKvHeads * kDim; ++i) x[i] = (float)(i % 5);
  const int32_t first[1] = {0};
  const mpfa_tensor tokens = mpfa_contiguous(x, MPFA_F32, 1, 100, kKvHeads, kDim);
  CHECK(mpfa_cache_append(cache, &tokens, &tokens, NULL, first, NULL, &error) == MPFA_OK);

  CHECK(mpfa_cache_fork(cache, 0, 1, MPFA_ALL_TOKENS, &error) == MPFA_OK);
  CHECK(mpfa_cache_truncate(cache, 1, 70, &error) == MPFA_OK);
  mpfa_cache_stats stats = {.struct_size = sizeof stats};
  CHECK(mpfa_cache_get_stats(cache, &stats, &error) == MPFA_OK);
  CHECK(stats.lengths[0] == 100 && stats.lengths[1] == 70 && stats.free_pages == 2);
  CHECK_REFUSED(mpfa_cache_fork(cache, 0, 1, 10, &error), MPFA_INVALID_ARGUMENT, "holds 70 tokens");
  CHECK_REFUSED(mpfa_cache_fork(cache, 0, 2, -2, &error), MPFA_OUT_OF_RANGE, "0..100");
  CHECK_REFUSED(mpfa_cache_fork(NULL, 0, 2, 1, &error), MPFA_INVALID_ARGUMENT, "NULL");
  CHECK_REFUSED(mpfa_cache_truncate(cache, 0, 101, &error), MPFA_OUT_OF_RANGE, "0..100");
  CHECK_REFUSED(mpfa_cache_truncate(NULL, 0, 1, &error), MPFA_INVALID_ARGUMENT, "NULL");

  mpfa_blob *blob = NULL, *again = NULL;
  CHECK(mpfa_cache_save(cache, 1, &blob, &error) == MPFA_OK);
  CHECK(mpfa_cache_load(cache, mpfa_blob_data(blob), mpfa_blob_bytes(blob), 2, &error) == MPFA_OK);
  CHECK(mpfa_cache_save(cache, 2, &again, &error) == MPFA_OK);
  CHECK(mpfa_blob_bytes(blob) > 0 && mpfa_blob_bytes(again) == mpfa_blob_bytes(blob));
  CHECK(memcmp(mpfa_blob_data(again), mpfa_blob_data(blob), mpfa_blob_bytes(blob)) == 0);
  mpfa_blob_destroy(again);
  CHECK(mpfa_cache_free_sequence(cache, 2, &error) == MPFA_OK);
  CHECK_REFUSED(mpfa_cache_load(cache, mpfa_blob_data(blob), mpfa_blob_bytes(blob) - 1, 2, &error), MPFA_IO_ERROR,
                "damaged");
  CHECK_REFUSED(mpfa_cache_load(cache, x, sizeof x, 2, &error), MPFA_IO_ERROR, "damaged");
  CHECK_REFUSED(mpfa_cache_load(cache, x, 0, 2, &error), MPFA_IO_ERROR, "damaged");
  CHECK_REFUSED(mpfa_cache_load(cache, NULL, 5, 2, &error), MPFA_INVALID_ARGUMENT, "NULL");
  CHECK_REFUSED(mpfa_cache_save(cache, 3, &again, &error), MPFA_OUT_OF_RANGE, "0..2");
  CHECK(again == NULL);
  CHECK_REFUSED(mpfa_cache_save(cache, 0, NULL, &error), MPFA_INVALID_ARGUMENT, "NULL");
  mpfa_blob_destroy(blob);
  mpfa_blob_destroy(NULL);
  CHECK(mpfa_blob_data(NULL) == NULL && mpfa_blob_bytes(NULL) == 0);

  /* A fork holds pages 0 and 1; freed and taken by sequence 2 they are others under the same ids. */
  const int32_t held[2] = {0, 1};
  int64_t stored[2] = {0, 0}, now = 0;
  for (int i = 0; i < 2; ++i) CHECK(mpfa_cache_page_generation(cache, held[i], &stored[i], &error) == MPFA_OK);
  CHECK_REFUSED(mpfa_cache_set_pages(cache, 1, held, stored, 2, &error), MPFA_INVALID_ARGUMENT, "shared");
  CHECK(mpfa_cache_free_sequence(cache, 0, &error) == MPFA_OK);
  CHECK(mpfa_cache_set_pages(cache, 1, held, stored, 2, &error) == MPFA_OK);
  CHECK(mpfa_cache_free_sequence(cache, 1, &error) == MPFA_OK);
  CHECK(mpfa_cache_append(cache, &tokens, &tokens, NULL, first, NULL, &error) == MPFA_OK);
  CHECK_REFUSED(mpfa_cache_set_pages(cache, 0, held, stored, 2, &error), MPFA_INVALID_ARGUMENT, "given out again");
  CHECK(mpfa_cache_page_generation(cache, 0, &now, &error) == MPFA_OK && now > stored[0]);
  CHECK(mpfa_cache_set_pages(cache, 0, held, NULL, 2, &error) == MPFA_OK);
  CHECK_REFUSED(mpfa_cache_set_pages(cache, 0, held, stored, -1, &error), MPFA_INVALID_ARGUMENT, "count");
  CHECK_REFUSED(mpfa_cache_set_pages(cache, 0, NULL, stored, 2, &error), MPFA_INVALID_ARGUMENT, "pages");
  CHECK_REFUSED(mpfa_cache_set_pages(NULL, 0, held, stored, 2, &error), MPFA_INVALID_ARGUMENT, "NULL");
  CHECK_REFUSED(mpfa_cache_page_generation(cache, 4, &now, &error), MPFA_OUT_OF_RANGE, "0..3");
  CHECK_REFUSED(mpfa_cache_page_generation(cache, 0, NULL, &error), MPFA_INVALID_ARGUMENT, "NULL");

  const mpfa_tensor two = mpfa_contiguous(x, MPFA_F32, 1, 2, kKvHeads, kDim);
  const int64_t slots[2] = {-1, 3 * 64}, outside[2] = {-1, 4 * 64};
  const int32_t pages[1] = {3};
  CHECK(mpfa_cache_write_slots(cache, &two, &two, slots, 2, &error) == MPFA_OK);
  CHECK(mpfa_cache_get_stats(cache, &stats, &error) == MPFA_OK && stats.free_pages == 1);
  CHECK_REFUSED(mpfa_cache_write_slots(cache, &two, &two, outside, 2, &error), MPFA_OUT_OF_RANGE, "256");
  CHECK_REFUSED(mpfa_cache_write_slots(cache, &two, &two, slots, 1, &error), MPFA_INVALID_ARGUMENT, "shape");
  CHECK_REFUSED(mpfa_cache_write_slots(cache, &two, &two, slots, -1, &error), MPFA_INVALID_ARGUMENT, "count");
  CHECK_REFUSED(mpfa_cache_write_slots(cache, &two, &two, NULL, 2, &error), MPFA_INVALID_ARGUMENT, "slot_mapping");
  CHECK_REFUSED(mpfa_cache_write_slots(cache, &two, NULL, slots, 2, &error), MPFA_INVALID_ARGUMENT, "v is missing");
  CHECK(mpfa_cache_free_slots(cache, pages, 1, &error) == MPFA_OK);
  CHECK_REFUSED(mpfa_cache_free_slots(cache, pages, 1, &error), MPFA_INVALID_ARGUMENT, "3");
  CHECK_REFUSED(mpfa_cache_free_slots(cache, NULL, 1, &error), MPFA_INVALID_ARGUMENT, "pages");
  CHECK(mpfa_cache_free_slots(cache, NULL, 0, &error) == MPFA_OK);
  mpfa_cache_destroy(cache);
  mpfa_recipe_destroy(recipe);
}
