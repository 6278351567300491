/* The C ABI from a C11 program: closed-form attention, views, quantising, and every kind of refusal. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/check.h"

int failures = 0;
mpfa_error error = MPFA_ERROR_INIT;

mpfa_recipe* recipe_of(const char* text) {
  mpfa_recipe* recipe = NULL;
  CHECK(mpfa_recipe_parse(text, &recipe, &error) == MPFA_OK);
  return recipe;
}

static mpfa_cache* cache_of(const mpfa_recipe* recipe, int64_t num_pages) {
  mpfa_cache_config config;
  mpfa_cache_config_init(&config, sizeof config);
  config.recipe = recipe;
  config.num_pages = num_pages;
  config.q_heads = kHeads;
  config.kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.head_dim_v = kDim;
  mpfa_cache* cache = NULL;
  CHECK(mpfa_cache_create(&config, &cache, &error) == MPFA_OK);
  return cache;
}

static mpfa_status append_constant_v(mpfa_cache* cache, int64_t tokens) {
  static float k[kMaxTokens * kKvHeads * kDim], v[kMaxTokens * kKvHeads * kDim];
  for (int i = 0; i < kMaxTokens * kKvHeads * kDim; ++i) {
    k[i] = (float)(i % 7) - 3.0F;
    v[i] = 1.5F; /* exact in every format of the test */
  }
  const mpfa_tensor kt = mpfa_contiguous(k, MPFA_F32, 1, tokens, kKvHeads, kDim);
  const mpfa_tensor vt = mpfa_contiguous(v, MPFA_F32, 1, tokens, kKvHeads, kDim);
  return mpfa_cache_append(cache, &kt, &vt, NULL, NULL, NULL, &error);
}

static mpfa_problem problem_of(const mpfa_recipe* recipe) {
  mpfa_problem problem;
  mpfa_problem_init(&problem, sizeof problem);
  problem.recipe = recipe;
  problem.max_kv = kMaxTokens;
  problem.q_heads = kHeads;
  problem.kv_heads = kKvHeads;
  problem.head_dim = kDim;
  problem.head_dim_v = kDim;
  problem.threads = 2;
  return problem;
}

/* An executor of the caller: counts its calls and runs the tasks from the last one. */
static int64_t executor_calls;
static void run_backwards(void* context, int64_t tasks, int32_t threads, void (*body)(void*, int64_t, int32_t),
                          void* argument) {
  CHECK(threads == 2);
  ++*(int64_t*)context;
  for (int64_t i = tasks; i-- > 0;) body(argument, i, threads - 1);
}

/* One query row of zeros over the cache (or the view): every logit is 0. */
static mpfa_status attend_zeros(const mpfa_problem* problem, mpfa_cache* cache, const mpfa_cache_view* view,
                                const float* sinks, float* out, float* lse) {
  static float q[kHeads * kDim];
  mpfa_plan* plan = NULL;
  mpfa_status status = mpfa_plan_create(problem, MPFA_CPU, &plan, &error);
  if (status != MPFA_OK) return status;
  CHECK(strcmp(mpfa_plan_kernel(plan), "") != 0);
  const size_t bytes = (mpfa_plan_workspace_bytes(plan) + 63) / 64 * 64;
  void* workspace = bytes == 0 ? NULL : aligned_alloc(64, bytes);
  mpfa_attend_args args;
  mpfa_attend_args_init(&args, sizeof args);
  args.q = mpfa_contiguous(q, MPFA_F32, 1, 1, kHeads, kDim);
  args.out = mpfa_contiguous(out, MPFA_F32, 1, 1, kHeads, kDim);
  args.cache = cache;
  args.view = view;
  args.lse = lse;
  args.sinks = sinks;
  const mpfa_executor executor = {sizeof executor, &executor_calls, run_backwards};
  args.executor = &executor;
  const int64_t calls = executor_calls;
  status = mpfa_attend(plan, &args, workspace, bytes, &error);
  CHECK(status != MPFA_OK || executor_calls > calls);
  free(workspace);
  mpfa_plan_destroy(plan);
  return status;
}

static void test_uniform_and_views(const char* text) {
  mpfa_recipe* recipe = recipe_of(text);
  mpfa_cache* cache = cache_of(recipe, 4);
  const mpfa_problem problem = problem_of(recipe);
  float out[kHeads * kDim], again[kHeads * kDim], lse[kHeads];
  int64_t total = 0;
  const int64_t steps[] = {1, 62, 1, 1, 65};
  for (int step = 0; step < 5; ++step) {
    CHECK(append_constant_v(cache, steps[step]) == MPFA_OK);
    total += steps[step];
    CHECK(attend_zeros(&problem, cache, NULL, NULL, out, lse) == MPFA_OK);
    for (int h = 0; h < kHeads; ++h) {
      CHECK_NEAR(lse[h], log((double)total), 1e-5);
      CHECK_NEAR(out[h * kDim + 5], 1.5, 1e-5);
    }
  }
  mpfa_cache_view view = {.struct_size = sizeof view};
  CHECK(mpfa_cache_get_view(cache, &view, &error) == MPFA_OK);
  CHECK(view.lengths[0] == total);
  CHECK(attend_zeros(&problem, NULL, &view, NULL, again, NULL) == MPFA_OK);
  CHECK(memcmp(out, again, sizeof out) == 0);
  CHECK_REFUSED(attend_zeros(&problem, cache, &view, NULL, out, NULL), MPFA_INVALID_ARGUMENT, "exactly one");

  mpfa_cache_stats stats = {.struct_size = sizeof stats};
  CHECK(mpfa_cache_get_stats(cache, &stats, &error) == MPFA_OK);
  CHECK(stats.lengths[0] == 130 && stats.num_pages == 4 && stats.free_pages == 1);
  CHECK(stats.bytes_per_token > 0.0 && stats.counters.nonfinite_blocks == 0);
  CHECK(mpfa_cache_seal(cache, &error) == MPFA_OK);
  CHECK_REFUSED(append_constant_v(cache, 200), MPFA_OUT_OF_MEMORY, "pages");
  CHECK(mpfa_cache_grow(cache, 8, &error) == MPFA_OK);
  CHECK(append_constant_v(cache, 200) == MPFA_OK);
  CHECK_REFUSED(attend_zeros(&problem, cache, NULL, NULL, out, lse), MPFA_OUT_OF_RANGE, "330");
  CHECK(mpfa_cache_copy_page(cache, 0, 7, &error) == MPFA_OK);
  CHECK_REFUSED(mpfa_cache_copy_page(cache, 0, 8, &error), MPFA_OUT_OF_RANGE, "8");
  CHECK(mpfa_cache_free_sequence(cache, 0, &error) == MPFA_OK);
  CHECK(attend_zeros(&problem, cache, NULL, NULL, out, lse) == MPFA_OK);
  CHECK(out[0] == 0.0F && isinf(lse[0]) && lse[0] < 0.0F);
  mpfa_cache_destroy(cache);
  mpfa_recipe_destroy(recipe);
}

static void test_sink_and_caller_memory(void) {
  enum { kTokens = 8 };
  mpfa_recipe* recipe = recipe_of("q=f32,k=f32,v=f32,p=f32");
  static float kv[kTokens * kKvHeads * kDim];
  for (int i = 0; i < kTokens * kKvHeads * kDim; ++i) kv[i] = 1.0F;
  const int64_t token_bytes = kKvHeads * kDim * (int64_t)sizeof(float), head_bytes = kDim * (int64_t)sizeof(float);
  const int32_t page_table[1] = {0};
  const int64_t lengths[1] = {kTokens};
  mpfa_cache_view view = {.struct_size = sizeof view,
                          .k_format = "f32",
                          .v_format = "f32",
                          .num_pages = 1,
                          .page_size = kTokens,
                          .kv_heads = kKvHeads,
                          .head_dim = kDim,
                          .head_dim_v = kDim};
  view.k.data = view.v.data = kv;
  view.k.data_page_stride = view.v.data_page_stride = kTokens * token_bytes;
  view.k.data_head_stride = view.v.data_head_stride = head_bytes;
  view.k.data_row_stride = view.v.data_row_stride = token_bytes;
  view.page_table = page_table;
  view.page_table_stride = 1;
  view.lengths = lengths;
  mpfa_problem problem = problem_of(recipe);
  problem.page_size = kTokens;
  problem.has_sinks = 1;
  const float sinks[kHeads] = {1.5F, 1.5F, 1.5F, 1.5F};
  float out[kHeads * kDim], lse[kHeads];
  CHECK(attend_zeros(&problem, NULL, &view, sinks, out, lse) == MPFA_OK);
  CHECK_NEAR(out[3 * kDim + 31], 0.640939, 1e-6);
  CHECK_NEAR(lse[3], log(8.0 + exp(1.5)), 1e-6);
  CHECK_REFUSED(attend_zeros(&problem, NULL, &view, NULL, out, lse), MPFA_INVALID_ARGUMENT, "sinks");
  view.k_format = "nvfp5";
  CHECK_REFUSED(attend_zeros(&problem, NULL, &view, sinks, out, lse), MPFA_INVALID_ARGUMENT, "nvfp4");
  mpfa_recipe_destroy(recipe);
}

static void test_quantize(void) {
  float x[16] = {0.5F, 6.0F, -0.5F, -6.0F}, back[16];
  uint8_t data[8], scales[1];
  mpfa_geometry geometry;
  mpfa_counters counters = {0};
  CHECK(mpfa_format_geometry("nvfp4", 16, 1, &geometry, &error) == MPFA_OK);
  CHECK(geometry.data_row_bytes == 8 && geometry.scale_row_bytes == 1);
  CHECK(mpfa_quantize("nvfp4", 16, 1, x, 16, 1.0F, data, sizeof data, scales, sizeof scales, &counters, &error) ==
        MPFA_OK);
  CHECK(data[0] == 0x71 && data[1] == 0xF9 && scales[0] == 0x38);
  CHECK(mpfa_dequantize("nvfp4", 16, 1, data, sizeof data, scales, sizeof scales, 1.0F, back, 16, &error) == MPFA_OK);
  CHECK(memcmp(x, back, sizeof x) == 0);
  CHECK_REFUSED(mpfa_quantize("nvfp4", 16, 1, x, 16, 1.0F, data, 7, scales, 1, NULL, &error), MPFA_INVALID_ARGUMENT,
                "8");
  CHECK_REFUSED(mpfa_quantize("nvfp4", 16, 1, NULL, 16, 1.0F, data, 8, scales, 1, NULL, &error), MPFA_INVALID_ARGUMENT,
                "NULL");
  CHECK_REFUSED(mpfa_quantize(NULL, 16, 1, x, 16, 1.0F, data, 8, scales, 1, NULL, &error), MPFA_INVALID_ARGUMENT,
                "NULL");
  CHECK(mpfa_format_geometry("nvfp4", -1, 1, &geometry, &error) != MPFA_OK);
}

static void test_merge(void) {
  const float oa[2] = {1.0F, 3.0F}, ob[2] = {3.0F, 5.0F}, la[1] = {0.25F}, lb[1] = {0.25F}, empty[1] = {-INFINITY};
  float o[2], lse[1];
  CHECK(mpfa_merge_states(1, 2, oa, la, ob, lb, o, lse, &error) == MPFA_OK);
  CHECK_NEAR(o[0], 2.0, 1e-6);
  CHECK_NEAR(lse[0], 0.25 + log(2.0), 1e-6);
  CHECK(mpfa_merge_states(1, 2, oa, la, ob, empty, o, lse, &error) == MPFA_OK);
  CHECK(memcmp(o, oa, sizeof o) == 0 && lse[0] == la[0]);
  CHECK_REFUSED(mpfa_merge_states(1, 2, oa, la, NULL, lb, o, lse, &error), MPFA_INVALID_ARGUMENT, "o_b");
  CHECK(mpfa_merge_states(-1, 2, oa, la, ob, lb, o, lse, NULL) == MPFA_INVALID_ARGUMENT);
}

static void test_refusals(void) {
  CHECK(mpfa_check_abi(MPFA_ABI_VERSION, &error) == MPFA_OK && error.status == MPFA_OK);
  CHECK_REFUSED(mpfa_check_abi(99, &error), MPFA_UNSUPPORTED, "99");
  CHECK(mpfa_recipe_name(0) != NULL && mpfa_recipe_name(-1) == NULL && mpfa_recipe_name(1000) == NULL);
  CHECK(mpfa_format_name(0) != NULL && mpfa_format_name(1000) == NULL);
  mpfa_recipe* recipe = NULL;
  CHECK_REFUSED(mpfa_recipe_parse("mxfp5", &recipe, &error), MPFA_INVALID_ARGUMENT, "mxfp4");
  CHECK(recipe == NULL);
  CHECK_REFUSED(mpfa_recipe_parse(NULL, &recipe, &error), MPFA_INVALID_ARGUMENT, "NULL");

  recipe = recipe_of("mxfp4");
  CHECK(strcmp(mpfa_recipe_text(recipe), "mxfp4") == 0);
  struct {
    mpfa_problem problem;
    int64_t future;
  } newer = {.problem = problem_of(recipe), .future = 0};
  newer.problem.struct_size = sizeof newer;
  char kernel[32] = "";
  CHECK(mpfa_supports(&newer.problem, MPFA_CPU, kernel, sizeof kernel, &error) == MPFA_OK && kernel[0] != '\0');
  newer.future = 1;
  CHECK_REFUSED(mpfa_supports(&newer.problem, MPFA_CPU, NULL, 0, &error), MPFA_INVALID_ARGUMENT, "does not know");
  mpfa_problem problem = problem_of(recipe);
  CHECK_REFUSED(mpfa_supports(&problem, MPFA_SM120, NULL, 0, &error), MPFA_UNSUPPORTED, "sm120");
  CHECK_REFUSED(mpfa_supports(&problem, (mpfa_device)17, NULL, 0, &error), MPFA_INVALID_ARGUMENT, "17");
  problem.struct_size = 8;
  CHECK_REFUSED(mpfa_supports(&problem, MPFA_CPU, NULL, 0, &error), MPFA_INVALID_ARGUMENT, "struct_size");
  problem = problem_of(recipe);
  problem.q_dtype = (mpfa_dtype)77;
  mpfa_plan* plan = NULL;
  CHECK_REFUSED(mpfa_plan_create(&problem, MPFA_CPU, &plan, &error), MPFA_INVALID_ARGUMENT, "77");
  problem = problem_of(recipe);
  problem.kv_heads = 3;
  CHECK_REFUSED(mpfa_plan_create(&problem, MPFA_CPU, &plan, &error), MPFA_INVALID_ARGUMENT, "multiple");
  CHECK(plan == NULL);

  mpfa_cache* cache = cache_of(recipe, 1);
  mpfa_tensor bad = mpfa_contiguous(NULL, MPFA_F32, 1, 1, kKvHeads, kDim);
  CHECK_REFUSED(mpfa_cache_append(cache, &bad, &bad, NULL, NULL, NULL, &error), MPFA_INVALID_ARGUMENT, "null");
  CHECK_REFUSED(mpfa_cache_append(NULL, &bad, &bad, NULL, NULL, NULL, &error), MPFA_INVALID_ARGUMENT, "NULL");
  CHECK_REFUSED(mpfa_attend(NULL, NULL, NULL, 0, &error), MPFA_INVALID_ARGUMENT, "NULL");
  mpfa_cache_destroy(cache);
  mpfa_cache_destroy(NULL);
  mpfa_plan_destroy(NULL);
  mpfa_recipe_destroy(recipe);
  CHECK(mpfa_plan_workspace_bytes(NULL) == 0);
}

int main(void) {
  const char* recipes[] = {"bf16", "mxfp4", "nvfp4,centre=none", "fp8", "kv=mxfp4,v_mean=page"};
  for (int i = 0; i < 5; ++i) test_uniform_and_views(recipes[i]);
  test_sink_and_caller_memory();
  test_quantize();
  test_merge();
  test_editing();
  test_rope();
  test_latent();
  test_pages();
  test_page_rope();
  test_devices();
  test_refusals();
  printf("%s\n", failures == 0 ? "all C ABI checks passed" : "C ABI checks failed");
  return failures == 0 ? 0 : 1;
}
