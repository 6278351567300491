/* Pages of the caller through the C ABI: described, written, attended to, copied to another layout, taken over. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tests/capi/check.h"

enum { kPages = 4, kPageSize = 16, kTokens = 40 };

static mpfa_pages pages_of(const char* format, const char* layout) {
  mpfa_pages p;
  mpfa_pages_init(&p, sizeof p);
  p.format = format;
  p.layout = layout;
  p.num_pages = kPages;
  p.page_size = kPageSize;
  p.kv_heads = kKvHeads;
  p.head_dim = kDim;
  return p;
}

static mpfa_plan* plan_of(const mpfa_recipe* recipe, int64_t q_heads, int64_t max_kv) {
  mpfa_problem problem;
  mpfa_problem_init(&problem, sizeof problem);
  problem.recipe = recipe;
  problem.max_kv = max_kv;
  problem.q_heads = q_heads;
  problem.kv_heads = kKvHeads;
  problem.head_dim = problem.head_dim_v = kDim;
  problem.page_size = kPageSize;
  mpfa_plan* plan = NULL;
  CHECK(mpfa_plan_create(&problem, MPFA_CPU, &plan, &error) == MPFA_OK);
  return plan;
}

/* One sequence in mxfp4 pages. */
static mpfa_cache_view view_of(const mpfa_pages* k, const mpfa_pages* v, const int32_t* table, int64_t columns,
                               const int64_t* length) {
  mpfa_cache_view view;
  memset(&view, 0, sizeof view);
  view.struct_size = sizeof view;
  view.k_format = view.v_format = "mxfp4";
  view.num_pages = kPages;
  view.page_size = kPageSize;
  view.kv_heads = kKvHeads;
  view.head_dim = view.head_dim_v = kDim;
  CHECK(mpfa_pages_operand(k, &view.k, &error) == MPFA_OK);
  CHECK(mpfa_pages_operand(v, &view.v, &error) == MPFA_OK);
  view.page_table = table;
  view.page_table_stride = columns;
  view.lengths = length;
  return view;
}

/* One query row over the cache or the view. */
static void attend_row(const mpfa_plan* plan, int64_t q_heads, float* q, mpfa_cache* cache, const mpfa_cache_view* view,
                       float* out) {
  static _Alignas(64) char workspace[1 << 20];
  CHECK(mpfa_plan_workspace_bytes(plan) <= sizeof workspace);
  mpfa_attend_args args;
  mpfa_attend_args_init(&args, sizeof args);
  args.q = mpfa_contiguous(q, MPFA_F32, 1, 1, q_heads, kDim);
  args.out = mpfa_contiguous(out, MPFA_F32, 1, 1, q_heads, kDim);
  args.cache = cache;
  args.view = view;
  CHECK(mpfa_attend(plan, &args, workspace, sizeof workspace, &error) == MPFA_OK);
}

static void test_tables(void) {
  const int32_t indptr[] = {0, 3, 3, 4}, indices[] = {3, 0, 2, 0}, last[] = {8, 0, 16}, bad[] = {8, 1, 16};
  int32_t table[9];
  int64_t lengths[3];
  CHECK(mpfa_page_table_from_csr(indptr, 3, indices, 4, last, 4, 16, table, 3, lengths, &error) == MPFA_OK);
  CHECK(table[0] == 3 && table[2] == 2 && table[3] == -1 && table[6] == 0 && table[8] == -1);
  CHECK(lengths[0] == 40 && lengths[1] == 0 && lengths[2] == 16);
  CHECK_REFUSED(mpfa_page_table_from_csr(indptr, 3, indices, 4, last, 4, 16, table, 2, lengths, &error),
                MPFA_OUT_OF_RANGE, "columns");
  CHECK_REFUSED(mpfa_page_table_from_csr(indptr, 3, indices, 4, bad, 4, 16, table, 3, lengths, &error),
                MPFA_INVALID_ARGUMENT, "must be 0");
  CHECK_REFUSED(mpfa_page_table_from_csr(indptr, 3, indices, 4, last, 3, 16, table, 3, lengths, &error),
                MPFA_OUT_OF_RANGE, "[0, 3)");
  CHECK_REFUSED(mpfa_page_table_from_csr(NULL, 3, indices, 4, last, 4, 16, table, 3, lengths, &error),
                MPFA_INVALID_ARGUMENT, "indptr is NULL");
  CHECK_REFUSED(mpfa_page_table_from_csr(indptr, -1, indices, 4, last, 4, 16, table, 3, lengths, &error),
                MPFA_INVALID_ARGUMENT, "count");
  CHECK_REFUSED(mpfa_page_table_from_csr(indptr, 3, indices, 4, last, 4, 16, table, -3, lengths, &error),
                MPFA_INVALID_ARGUMENT, "count");
}

/* bf16 pages become mxfp4 in place and are attended to. */
static void test_convert(void) {
  static uint16_t pool[2][kPages * kPageSize * kKvHeads * kDim];
  mpfa_pages wide[2], packed[2];
  const int32_t ids[2] = {3, 1};
  mpfa_counters counters = {1, 0, 0};
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < kPages * kPageSize * kKvHeads * kDim; ++j) pool[i][j] = i == 0 ? 0x3F80 : 0x3FC0; /* 1, 1.5 */
    wide[i] = pages_of("bf16", NULL);
    CHECK(mpfa_pages_dense(&wide[i], "hnd", &error) == MPFA_OK);
    wide[i].data = pool[i];
    CHECK(mpfa_pages_convert(&wide[i], "mxfp4", ids, 2, NULL, NULL, &packed[i], &counters, &error) == MPFA_OK);
  }
  CHECK(counters.nonfinite_blocks == 1 && packed[0].data == pool[0] && packed[0].data_row_stride == kDim / 2);
  CHECK(pool[0][0] == 0x3F80 && packed[0].scale_offset == kPageSize * kKvHeads * kDim / 2);
  mpfa_pages* none = NULL;
  CHECK_REFUSED(mpfa_pages_convert(&wide[0], "bf16", ids, 1, NULL, NULL, &packed[0], NULL, &error),
                MPFA_INVALID_ARGUMENT, "not smaller");
  CHECK_REFUSED(mpfa_pages_convert(&wide[0], "mxfp4", ids, -1, NULL, NULL, &packed[0], NULL, &error),
                MPFA_INVALID_ARGUMENT, "count");
  CHECK_REFUSED(mpfa_pages_convert(&wide[0], NULL, ids, 1, NULL, NULL, &packed[0], NULL, &error), MPFA_INVALID_ARGUMENT,
                "format is NULL");
  CHECK_REFUSED(mpfa_pages_convert(&wide[0], "mxfp4", ids, 1, NULL, NULL, none, NULL, &error), MPFA_INVALID_ARGUMENT,
                "converted is NULL");
  CHECK_REFUSED(mpfa_pages_convert(&wide[0], "mxfp4", ids, 1, NULL, NULL, &wide[0], NULL, &error),
                MPFA_INVALID_ARGUMENT, "a struct of its own");
  CHECK_REFUSED(mpfa_pages_convert(&packed[0], "int8", ids, 1, NULL, NULL, &wide[0], NULL, &error),
                MPFA_INVALID_ARGUMENT, "bf16 or fp16");

  const int64_t length = kPageSize + 3;
  const mpfa_cache_view view = view_of(&packed[0], &packed[1], ids, 2, &length);
  mpfa_recipe* recipe = recipe_of("kv=mxfp4");
  mpfa_plan* plan = plan_of(recipe, kKvHeads, 2 * kPageSize);
  static float q[kKvHeads * kDim], out[kKvHeads * kDim];
  attend_row(plan, kKvHeads, q, NULL, &view, out);
  for (int i = 0; i < kKvHeads * kDim; ++i) CHECK_NEAR(out[i], 1.5, 1e-6);
  mpfa_plan_destroy(plan);
  mpfa_recipe_destroy(recipe);
}

static const int32_t kTable[3] = {3, 0, 2};

/* kTokens written by slot into both pages, attended to, and the row `want` of a cache that appended them. */
static mpfa_cache* write_and_attend(const mpfa_pages* k, const mpfa_pages* v, const mpfa_plan* plan,
                                    const mpfa_recipe* recipe, float* q, float* want) {
  static float x[kTokens * kKvHeads * kDim];
  for (int i = 0; i < kTokens * kKvHeads * kDim; ++i) x[i] = (float)((i * 37) % 101) / 50.0f - 1.0f;
  int32_t slots[kTokens];
  for (int t = 0; t < kTokens; ++t) slots[t] = kTable[t / kPageSize] * kPageSize + t % kPageSize;
  mpfa_cache_config config;
  mpfa_cache_config_init(&config, sizeof config);
  config.recipe = recipe;
  config.num_pages = kPages;
  config.page_size = kPageSize;
  config.q_heads = kHeads;
  config.kv_heads = kKvHeads;
  config.head_dim = config.head_dim_v = kDim;
  const mpfa_tensor tokens = mpfa_contiguous(x, MPFA_F32, 1, kTokens, kKvHeads, kDim);
  mpfa_counters counters = {1, 0, 0};
  CHECK(mpfa_pages_write(&config, k, v, &tokens, &tokens, slots, MPFA_I32, kTokens, NULL, &counters, &error) ==
        MPFA_OK);
  CHECK(counters.nonfinite_blocks == 1);
  CHECK_REFUSED(mpfa_pages_write(&config, k, v, &tokens, &tokens, slots, MPFA_F32, kTokens, NULL, NULL, &error),
                MPFA_INVALID_ARGUMENT, "MPFA_I64");
  const int64_t outside[1] = {kPages * kPageSize};
  const mpfa_tensor one = mpfa_contiguous(x, MPFA_F32, 1, 1, kKvHeads, kDim);
  CHECK_REFUSED(mpfa_pages_write(&config, k, v, &one, &one, outside, MPFA_I64, 1, NULL, NULL, &error),
                MPFA_OUT_OF_RANGE, "slots 0..63");
  CHECK_REFUSED(mpfa_pages_write(&config, k, NULL, &one, &one, outside, MPFA_I64, 1, NULL, NULL, &error),
                MPFA_INVALID_ARGUMENT, "v_pages is NULL");

  mpfa_cache* cache = NULL;
  CHECK(mpfa_cache_create(&config, &cache, &error) == MPFA_OK);
  CHECK(mpfa_cache_append(cache, &tokens, &tokens, NULL, NULL, NULL, &error) == MPFA_OK);
  attend_row(plan, kHeads, q, cache, NULL, want);
  const int64_t length = kTokens;
  const mpfa_cache_view view = view_of(k, v, kTable, 3, &length);
  float out[kHeads * kDim];
  attend_row(plan, kHeads, q, NULL, &view, out);
  CHECK(memcmp(out, want, sizeof out) == 0);
  return cache;
}

/* To ggml blocks, and from there into the cache. */
static void test_ggml(const mpfa_pages* k, const mpfa_pages* v, mpfa_cache* cache) {
  static unsigned char blocks[2][kPages * kPageSize * kKvHeads * kDim];
  mpfa_pages gk = pages_of("mxfp4", "ggml"), gv = gk;
  const mpfa_pages* both[2] = {k, v};
  mpfa_pages* foreign[2] = {&gk, &gv};
  const int32_t in_order[3] = {0, 1, 2}, twice[3] = {0, 0, 1};
  for (int i = 0; i < 2; ++i) {
    CHECK(mpfa_pages_dense(foreign[i], "nhd", &error) == MPFA_OK);
    CHECK(foreign[i]->data_bytes == kPages * kPageSize * kKvHeads * 17);
    foreign[i]->data = blocks[i];
    CHECK(mpfa_pages_copy(both[i], foreign[i], kTable, in_order, 3, kTokens, &error) == MPFA_OK);
  }
  mpfa_operand_pages operand;
  CHECK_REFUSED(mpfa_pages_copy(k, &gk, kTable, twice, 3, kTokens, &error), MPFA_INVALID_ARGUMENT, "twice");
  CHECK_REFUSED(mpfa_pages_operand(&gk, &operand, &error), MPFA_INVALID_ARGUMENT, "only linear");
  char tag[80];
  CHECK(mpfa_pages_tag(&gk, tag, sizeof tag, &error) == MPFA_OK);
  CHECK(strcmp(tag, "mxfp4 ggml page_size=16 kv_heads=2 head_dim=32") == 0);
  CHECK(mpfa_pages_check_tag(&gv, tag, &error) == MPFA_OK);
  CHECK_REFUSED(mpfa_pages_check_tag(k, tag, &error), MPFA_INVALID_ARGUMENT, "the tag is");
  CHECK_REFUSED(mpfa_cache_import_pages(cache, 0, &gk, &gv, in_order, 3, kTokens, &error), MPFA_INVALID_ARGUMENT,
                "holds 40 tokens");
  CHECK(mpfa_cache_free_sequence(cache, 0, &error) == MPFA_OK);
  CHECK(mpfa_cache_import_pages(cache, 0, &gk, &gv, in_order, 3, kTokens, &error) == MPFA_OK);
}

/* One buffer for both, and buffers that are too small. */
static void test_joined(void) {
  static unsigned char joined[kPages * 2 * kPageSize * kKvHeads * kDim * 2];
  mpfa_pages k = pages_of("bf16", NULL), v = k;
  mpfa_operand_pages operand;
  CHECK(mpfa_pages_joined(&k, &v, "nhd", joined, sizeof joined, 0, &error) == MPFA_OK);
  CHECK(v.data_offset == kPageSize * kKvHeads * kDim * 2 && v.data_page_stride == 2 * v.data_offset);
  CHECK(mpfa_pages_operand(&v, &operand, &error) == MPFA_OK && operand.scales == NULL);
  CHECK(mpfa_pages_joined(&k, &v, "nhd", joined, sizeof joined - 1, 0, &error) == MPFA_OK);
  CHECK_REFUSED(mpfa_pages_operand(&v, &operand, &error), MPFA_OUT_OF_RANGE, "of a buffer of");
  CHECK_REFUSED(mpfa_pages_joined(&k, &v, "nhd", NULL, 1, 0, &error), MPFA_INVALID_ARGUMENT, "buffer is NULL");
  k.struct_size = 8;
  CHECK_REFUSED(mpfa_pages_operand(&k, &operand, &error), MPFA_INVALID_ARGUMENT, "struct_size");
}

void test_pages(void) {
  test_convert();
  test_tables();
  test_joined();
  static unsigned char data[2][kPages * kPageSize * kKvHeads * kDim], scales[2][kPages * kPageSize * kKvHeads * 4];
  mpfa_pages both[2] = {pages_of("mxfp4", NULL), pages_of("mxfp4", NULL)};
  for (int i = 0; i < 2; ++i) {
    CHECK(mpfa_pages_dense(&both[i], i == 0 ? "nhd" : "hnd", &error) == MPFA_OK);
    CHECK(both[i].data_bytes == kPages * kPageSize * kKvHeads * kDim / 2 &&
          both[i].scales_bytes == kPages * kPageSize * kKvHeads);
    both[i].data = data[i];
    both[i].scales = scales[i];
  }
  CHECK_REFUSED(mpfa_pages_dense(&both[0], "dhn", &error), MPFA_INVALID_ARGUMENT, "nhd, hnd");
  static float q[kHeads * kDim];
  for (int i = 0; i < kHeads * kDim; ++i) q[i] = (float)((i * 11) % 13) / 6.0f - 1.0f;
  mpfa_recipe* recipe = recipe_of("mxfp4,centre=none");
  mpfa_plan* plan = plan_of(recipe, kHeads, kTokens);
  float want[kHeads * kDim], out[kHeads * kDim];
  mpfa_cache* cache = write_and_attend(&both[0], &both[1], plan, recipe, q, want);
  test_ggml(&both[0], &both[1], cache);
  attend_row(plan, kHeads, q, cache, NULL, out);
  CHECK(memcmp(out, want, sizeof out) == 0);
  mpfa_plan_destroy(plan);
  mpfa_cache_destroy(cache);
  mpfa_recipe_destroy(recipe);
}
