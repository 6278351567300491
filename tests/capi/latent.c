/* A latent cache through the C ABI: K alone goes in, V comes out of its first channels, in place of a second tensor. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/check.h"

enum { kTokens = 70, kK = 576, kV = 512, kQHeads = 16 };

static mpfa_cache* latent_cache(const mpfa_recipe* recipe, int32_t shared) {
  mpfa_cache_config config;
  mpfa_cache_config_init(&config, sizeof config);
  config.recipe = recipe;
  config.num_pages = 2;
  config.q_heads = kQHeads;
  config.kv_heads = 1;
  config.head_dim = kK;
  config.head_dim_v = kV;
  config.shared_kv = shared;
  mpfa_cache* cache = NULL;
  CHECK(mpfa_cache_create(&config, &cache, &error) == MPFA_OK);
  return cache;
}

void test_latent(void) {
  mpfa_recipe* recipe = recipe_of("kv=mxfp4");
  mpfa_cache* cache = latent_cache(recipe, 1);
  static float k[kTokens * kK], q[kQHeads * kK], out[kQHeads * kV];
  for (int i = 0; i < kTokens * kK; ++i) k[i] = i % kK < kV ? 1.5F : (float)(i % 11) - 5.0F;
  const mpfa_tensor tokens = mpfa_contiguous(k, MPFA_F32, 1, kTokens, 1, kK);
  CHECK_REFUSED(mpfa_cache_append(cache, &tokens, &tokens, NULL, NULL, NULL, &error), MPFA_INVALID_ARGUMENT,
                "pass k alone");
  CHECK(mpfa_cache_append(cache, &tokens, NULL, NULL, NULL, NULL, &error) == MPFA_OK);
  mpfa_cache_stats stats = {.struct_size = sizeof stats};
  CHECK(mpfa_cache_get_stats(cache, &stats, &error) == MPFA_OK);
  CHECK(stats.bytes_per_token == kK / 2 + kK / 32);

  mpfa_cache_view view = {.struct_size = sizeof view};
  CHECK(mpfa_cache_get_view(cache, &view, &error) == MPFA_OK);
  CHECK(view.shared_kv == 1 && view.v.data == view.k.data);
  mpfa_problem problem;
  mpfa_problem_init(&problem, sizeof problem);
  problem.recipe = recipe;
  problem.max_kv = kTokens;
  problem.q_heads = kQHeads;
  problem.kv_heads = 1;
  problem.head_dim = kK;
  problem.head_dim_v = kV;
  mpfa_plan* plan = NULL;
  CHECK(mpfa_plan_create(&problem, MPFA_CPU, &plan, &error) == MPFA_OK);
  const size_t bytes = (mpfa_plan_workspace_bytes(plan) + 63) / 64 * 64;
  void* workspace = aligned_alloc(64, bytes);
  mpfa_attend_args args;
  mpfa_attend_args_init(&args, sizeof args);
  for (int i = 0; i < kQHeads * kK; ++i) q[i] = (float)(i % 3) - 1.0F;
  args.q = mpfa_contiguous(q, MPFA_F32, 1, 1, kQHeads, kK);
  args.out = mpfa_contiguous(out, MPFA_F32, 1, 1, kQHeads, kV);
  args.view = &view;
  CHECK(mpfa_attend(plan, &args, workspace, bytes, &error) == MPFA_OK);
  for (int i = 0; i < kQHeads * kV; ++i) CHECK_NEAR(out[i], 1.5, 1e-5); /* exact in mxfp4 */
  view.v.data = (const char*)view.v.data + 1;
  CHECK_REFUSED(mpfa_attend(plan, &args, workspace, bytes, &error), MPFA_INVALID_ARGUMENT, "other memory");
  free(workspace);
  mpfa_plan_destroy(plan);

  mpfa_blob* blob = NULL;
  CHECK(mpfa_cache_save(cache, 0, &blob, &error) == MPFA_OK);
  mpfa_cache* apart = latent_cache(recipe, 0);
  CHECK_REFUSED(mpfa_cache_append(apart, &tokens, NULL, NULL, NULL, NULL, &error), MPFA_INVALID_ARGUMENT,
                "v is missing");
  CHECK_REFUSED(mpfa_cache_load(apart, mpfa_blob_data(blob), mpfa_blob_bytes(blob), 0, &error), MPFA_INVALID_ARGUMENT,
                "shared_kv");
  mpfa_blob_destroy(blob);
  mpfa_cache_destroy(apart);
  mpfa_cache_destroy(cache);
  mpfa_recipe_destroy(recipe);
}
