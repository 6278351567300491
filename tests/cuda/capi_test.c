/* The C ABI on a CUDA device: a plan, attention on a stream over device memory, writes by slot, conversions, refusals.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/check.h"

int failures = 0;
mpfa_error error = MPFA_ERROR_INIT;

enum { kPages = 6, kPageSize = 16, kTokens = 70, kHeadDim = 64, kGroup = 2, kSkipped = 77 };
enum { kTokenElements = kTokens * kKvHeads * kHeadDim, kRow = kKvHeads * kGroup * kHeadDim };
enum { kCodes = kPages * kPageSize * kKvHeads * kHeadDim / 2, kScales = kPages * kPageSize * kKvHeads * kHeadDim / 32 };

static void* on_device(const void* host, size_t bytes) {
  void* p = NULL;
  CHECK(cudaMalloc(&p, bytes) == cudaSuccess);
  if (host == NULL) {
    CHECK(cudaMemset(p, 0, bytes) == cudaSuccess);
  } else {
    CHECK(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  return p;
}

static mpfa_pages pages_at(void* data, void* scales) {
  mpfa_pages p;
  mpfa_pages_init(&p, sizeof p);
  p.format = "mxfp4";
  p.num_pages = kPages;
  p.page_size = kPageSize;
  p.kv_heads = kKvHeads;
  p.head_dim = kHeadDim;
  CHECK(mpfa_pages_dense(&p, "hnd", &error) == MPFA_OK);
  CHECK(p.data_bytes == kCodes && p.scales_bytes == kScales);
  p.data = data;
  p.scales = scales;
  return p;
}

static mpfa_cache_config config_of(const mpfa_recipe* recipe) {
  mpfa_cache_config config;
  mpfa_cache_config_init(&config, sizeof config);
  config.recipe = recipe;
  config.num_pages = kPages;
  config.page_size = kPageSize;
  config.q_heads = kKvHeads * kGroup;
  config.kv_heads = kKvHeads;
  config.head_dim = config.head_dim_v = kHeadDim;
  return config;
}

static uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}

/* Pages of bf16 become mxfp4 where they are, with the bytes of the host. */
static void test_conversion(cudaStream_t stream) {
  enum { kElements = kPages * kPageSize * kKvHeads * kHeadDim };
  static uint16_t host[kElements], copied[kElements];
  for (int i = 0; i < kElements; ++i) host[i] = to_bf16((float)((i * 29) % 83) / 9.0f - 4.0f);
  mpfa_pages wide, converted, expected;
  mpfa_pages_init(&wide, sizeof wide);
  wide.format = "bf16";
  wide.num_pages = kPages;
  wide.page_size = kPageSize;
  wide.kv_heads = kKvHeads;
  wide.head_dim = kHeadDim;
  CHECK(mpfa_pages_dense(&wide, "nhd", &error) == MPFA_OK && wide.data_bytes == sizeof host);
  const int32_t ids[3] = {4, 0, 3};
  float mean[kKvHeads * kHeadDim];
  for (int i = 0; i < kKvHeads * kHeadDim; ++i) mean[i] = (float)(i % 5) / 4.0f;
  mpfa_page_conversion c;
  mpfa_page_conversion_init(&c, sizeof c);
  c.pages = &wide;
  c.format = "mxfp4";
  c.ids = ids;
  c.count = 3;
  c.stream = stream;
  wide.data = on_device(host, sizeof host);
  CHECK_REFUSED(mpfa_convert_pages(&c, MPFA_SM90, &converted, &error), MPFA_INVALID_ARGUMENT,
                "ids is not memory of the current device");
  const uint64_t none[3] = {0, 0, 0};
  uint64_t counters[3];
  c.ids = on_device(ids, sizeof ids);
  c.mean = on_device(mean, sizeof mean);
  c.counters = on_device(none, sizeof none);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(mpfa_convert_pages(&c, MPFA_SM90, &converted, &error) == MPFA_OK);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(cudaMemcpy(copied, wide.data, sizeof copied, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(cudaMemcpy(counters, c.counters, sizeof counters, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(converted.data == wide.data && converted.scales == wide.data);
  void* const device = wide.data;
  wide.data = host;
  mpfa_counters met = {0, 0, 0};
  CHECK(mpfa_pages_convert(&wide, "mxfp4", ids, 3, mean, NULL, &expected, &met, &error) == MPFA_OK);
  CHECK(memcmp(copied, host, sizeof host) == 0);
  CHECK(strcmp(converted.format, "mxfp4") == 0 && converted.scale_offset == expected.scale_offset);
  CHECK(converted.data_head_stride == expected.data_head_stride);
  CHECK(converted.scale_row_stride == expected.scale_row_stride);
  CHECK(counters[0] == 0 && (int64_t)counters[1] == met.saturated_elements);
  CHECK(cudaFree(device) == cudaSuccess);
}

/* Two halves of weight one each, the second one into the memory of the first. */
static void test_merge(cudaStream_t stream) {
  const float a[4] = {1.0f, 2.0f, 3.0f, 4.0f}, b[4] = {3.0f, 6.0f, 5.0f, 8.0f}, lse[2] = {0.5f, -INFINITY};
  float out[4], out_lse[2];
  mpfa_state_merge m;
  mpfa_state_merge_init(&m, sizeof m);
  m.a = m.out = mpfa_contiguous(on_device(a, sizeof a), MPFA_F32, 1, 1, 2, 2);
  m.b = mpfa_contiguous(on_device(b, sizeof b), MPFA_F32, 1, 1, 2, 2);
  m.lse_a = m.lse_b = m.lse = on_device(lse, sizeof lse);
  m.stream = stream;
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(mpfa_merge(&m, MPFA_SM90, &error) == MPFA_OK);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(cudaMemcpy(out, m.out.data, sizeof out, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(cudaMemcpy(out_lse, m.lse, sizeof out_lse, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(out[0] == 2.0f && out[1] == 4.0f && out[2] == 0.0f && out[3] == 0.0f);
  CHECK_NEAR(out_lse[0], 0.5f + logf(2.0f), 1e-6);
  CHECK(isinf(out_lse[1]));
  m.lse_b = lse;
  CHECK_REFUSED(mpfa_merge(&m, MPFA_SM90, &error), MPFA_INVALID_ARGUMENT, "lse_b is not memory of the current device");
}

static float tokens[kTokenElements], q32[kRow], want[kRow];
static unsigned char data[2][kCodes], scales[2][kScales], back[kCodes];

int main(void) {
  mpfa_device device = -1;
  if (mpfa_cuda_device(&device, &error) != MPFA_OK || mpfa_available(MPFA_SM90, &error) != MPFA_OK) {
    printf("SKIPPED: %s\n", error.message);
    return kSkipped;
  }
  CHECK(device == MPFA_SM90 && strstr(mpfa_build_info(), "sm90") != NULL);
  static uint16_t q[kRow], out[kRow];
  for (int i = 0; i < kTokenElements; ++i) tokens[i] = (float)((i * 37) % 101) / 50.0f - 1.0f;
  for (int i = 0; i < kRow; ++i) {
    q[i] = to_bf16((float)((i * 11) % 13) / 6.0f - 1.0f);
    const uint32_t bits = (uint32_t)q[i] << 16;
    memcpy(&q32[i], &bits, sizeof bits);
  }
  int64_t slots[kTokens];
  const int32_t table[5] = {3, 0, 5, 1, 4};
  for (int t = 0; t < kTokens; ++t) slots[t] = table[t / kPageSize] * kPageSize + t % kPageSize;

  /* The host writes and attends. */
  mpfa_recipe* recipe = NULL;
  CHECK(mpfa_recipe_parse("mxfp4,centre=none", &recipe, &error) == MPFA_OK);
  const mpfa_cache_config config = config_of(recipe);
  mpfa_pages host[2] = {pages_at(data[0], scales[0]), pages_at(data[1], scales[1])};
  const mpfa_tensor x = mpfa_contiguous(tokens, MPFA_F32, 1, kTokens, kKvHeads, kHeadDim);
  CHECK(mpfa_pages_write(&config, &host[0], &host[1], &x, &x, slots, MPFA_I64, kTokens, NULL, NULL, &error) == MPFA_OK);
  mpfa_cache* cache = NULL;
  CHECK(mpfa_cache_create(&config, &cache, &error) == MPFA_OK);
  CHECK(mpfa_cache_append(cache, &x, &x, NULL, NULL, NULL, &error) == MPFA_OK);
  mpfa_problem problem;
  mpfa_problem_init(&problem, sizeof problem);
  problem.recipe = recipe;
  problem.max_kv = 80;
  problem.q_heads = kKvHeads * kGroup;
  problem.kv_heads = kKvHeads;
  problem.head_dim = problem.head_dim_v = kHeadDim;
  problem.page_size = kPageSize;
  mpfa_plan* plan = NULL;
  CHECK(mpfa_plan_create(&problem, MPFA_CPU, &plan, &error) == MPFA_OK);
  mpfa_attend_args args;
  mpfa_attend_args_init(&args, sizeof args);
  args.q = mpfa_contiguous(q32, MPFA_F32, 1, 1, kKvHeads * kGroup, kHeadDim);
  args.out = mpfa_contiguous(want, MPFA_F32, 1, 1, kKvHeads * kGroup, kHeadDim);
  args.cache = cache;
  const size_t bytes = (mpfa_plan_workspace_bytes(plan) + 63) / 64 * 64;
  void* scratch = aligned_alloc(64, bytes);
  CHECK(mpfa_attend(plan, &args, scratch, bytes, &error) == MPFA_OK);
  free(scratch);
  mpfa_plan_destroy(plan);

  /* The device writes the same bytes... */
  cudaStream_t stream = NULL;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  mpfa_pages pages[2];
  for (int i = 0; i < 2; ++i) pages[i] = pages_at(on_device(NULL, kCodes), on_device(NULL, kScales));
  mpfa_slot_write write;
  mpfa_slot_write_init(&write, sizeof write);
  write.k_pages = &pages[0];
  write.v_pages = &pages[1];
  write.k = write.v = mpfa_contiguous(on_device(tokens, sizeof tokens), MPFA_F32, 1, kTokens, kKvHeads, kHeadDim);
  write.slot_mapping = slots;
  write.stream = stream;
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK_REFUSED(mpfa_write_slots(&write, MPFA_SM90, &error), MPFA_INVALID_ARGUMENT,
                "slot_mapping is not memory of the current");
  CHECK_REFUSED(mpfa_write_slots(&write, MPFA_CPU, &error), MPFA_UNSUPPORTED, "PagedCache::write_slots");
  write.slot_mapping = on_device(slots, sizeof slots);
  CHECK(mpfa_write_slots(&write, MPFA_SM90, &error) == MPFA_OK);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  for (int i = 0; i < 2; ++i) {
    CHECK(cudaMemcpy(back, pages[i].data, kCodes, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(memcmp(back, data[i], kCodes) == 0);
    CHECK(cudaMemcpy(back, pages[i].scales, kScales, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(memcmp(back, scales[i], kScales) == 0);
  }

  /* ... and attends to them. */
  problem.q_dtype = problem.out_dtype = MPFA_BF16;
  CHECK(mpfa_plan_create(&problem, MPFA_SM90, &plan, &error) == MPFA_OK);
  CHECK(strcmp(mpfa_plan_kernel(plan), "sm90_decode") == 0);
  const int64_t length = kTokens;
  const mpfa_sequence_view none = {0};
  mpfa_cache_view view;
  memset(&view, 0, sizeof view);
  view.struct_size = sizeof view;
  view.k_format = view.v_format = "mxfp4";
  view.num_pages = kPages;
  view.page_size = kPageSize;
  view.kv_heads = kKvHeads;
  view.head_dim = view.head_dim_v = kHeadDim;
  CHECK(mpfa_pages_operand(&pages[0], &view.k, &error) == MPFA_OK);
  CHECK(mpfa_pages_operand(&pages[1], &view.v, &error) == MPFA_OK);
  view.page_table = on_device(table, sizeof table);
  view.page_table_stride = 5;
  view.lengths = on_device(&length, sizeof length);
  view.sequences = on_device(&none, sizeof none);
  args.q = mpfa_contiguous(on_device(q, sizeof q), MPFA_BF16, 1, 1, kKvHeads * kGroup, kHeadDim);
  args.out = mpfa_contiguous(on_device(NULL, sizeof out), MPFA_BF16, 1, 1, kKvHeads * kGroup, kHeadDim);
  args.stream = stream;
  const size_t device_bytes = mpfa_plan_workspace_bytes(plan);
  void* workspace = on_device(NULL, device_bytes);
  CHECK_REFUSED(mpfa_attend(plan, &args, workspace, device_bytes, &error), MPFA_INVALID_ARGUMENT, "in host memory");
  args.cache = NULL;
  args.view = &view;
  CHECK_REFUSED(mpfa_attend(plan, &args, workspace, device_bytes - 1, &error), MPFA_INVALID_ARGUMENT, "the plan needs");
  view.lengths = &length;
  CHECK_REFUSED(mpfa_attend(plan, &args, workspace, device_bytes, &error), MPFA_INVALID_ARGUMENT, "cache.lengths is");
  view.lengths = on_device(&length, sizeof length);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(mpfa_attend(plan, &args, workspace, device_bytes, &error) == MPFA_OK);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(cudaMemcpy(out, args.out.data, sizeof out, cudaMemcpyDeviceToHost) == cudaSuccess);
  for (int i = 0; i < kRow; ++i) {
    const uint32_t bits = (uint32_t)out[i] << 16;
    float got;
    memcpy(&got, &bits, sizeof got);
    CHECK_NEAR(got, want[i], 4e-3);
  }
  mpfa_plan_destroy(plan);
  mpfa_cache_destroy(cache);
  mpfa_recipe_destroy(recipe);
  test_conversion(stream);
  test_merge(stream);
  if (failures == 0) printf("all C ABI checks on the device passed\n");
  return failures == 0 ? 0 : 1;
}
