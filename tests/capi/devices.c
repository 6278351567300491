/* Devices through the C ABI, with or without a card: what is built, what is there, calls that need one. */
#include <string.h>

#include "tests/capi/check.h"

void test_devices(void) {
  CHECK(strstr(mpfa_build_info(), "kernels for cpu") != NULL);
  CHECK(mpfa_available(MPFA_CPU, &error) == MPFA_OK);
  CHECK_REFUSED(mpfa_available(MPFA_SM120, &error), MPFA_UNSUPPORTED, "sm120");
  CHECK_REFUSED(mpfa_available(17, &error), MPFA_INVALID_ARGUMENT, "device is 17");
  CHECK_REFUSED(mpfa_cuda_device(NULL, &error), MPFA_INVALID_ARGUMENT, "device is NULL");
  mpfa_device kind = MPFA_CPU;
  const mpfa_status there = mpfa_cuda_device(&kind, &error);
  CHECK(there == MPFA_OK ? kind != MPFA_CPU : there == MPFA_UNSUPPORTED && error.message[0] != '\0');

  /* supports answers for the build, plan_create for the machine too. */
  mpfa_recipe* recipe = recipe_of("nvfp4");
  mpfa_problem problem;
  mpfa_problem_init(&problem, sizeof problem);
  problem.recipe = recipe;
  problem.max_kv = 1024;
  problem.q_heads = 8;
  problem.kv_heads = 2;
  problem.head_dim = problem.head_dim_v = 128;
  problem.q_dtype = problem.out_dtype = MPFA_BF16;
  char kernel[32] = "";
  const int built = strstr(mpfa_build_info(), "sm90") != NULL;
  const mpfa_status supported = mpfa_supports(&problem, MPFA_SM90, kernel, sizeof kernel, &error);
  CHECK(built ? supported == MPFA_OK && strcmp(kernel, "sm90_decode") == 0
              : supported == MPFA_UNSUPPORTED && strstr(error.message, "built without CUDA kernels") != NULL);
  if (there != MPFA_OK) {
    mpfa_plan* plan = NULL;
    CHECK(mpfa_plan_create(&problem, MPFA_SM90, &plan, &error) == MPFA_UNSUPPORTED && plan == NULL);
    CHECK(strstr(error.message, built ? "no CUDA device" : "built without CUDA kernels") != NULL);
  }
  mpfa_recipe_destroy(recipe);

  mpfa_slot_write write;
  mpfa_slot_write_init(&write, sizeof write);
  CHECK_REFUSED(mpfa_write_slots(NULL, MPFA_SM90, &error), MPFA_INVALID_ARGUMENT, "write is NULL");
  CHECK_REFUSED(mpfa_write_slots(&write, MPFA_SM90, &error), MPFA_INVALID_ARGUMENT, "k_pages is NULL");
  write.struct_size = 8;
  CHECK_REFUSED(mpfa_write_slots(&write, MPFA_SM90, &error), MPFA_INVALID_ARGUMENT, "struct_size");

  uint16_t page[16 * 2 * 64] = {0};
  mpfa_pages pages, converted;
  mpfa_pages_init(&pages, sizeof pages);
  pages.format = "bf16";
  pages.num_pages = 1;
  pages.page_size = 16;
  pages.kv_heads = 2;
  pages.head_dim = 64;
  CHECK(mpfa_pages_dense(&pages, "nhd", &error) == MPFA_OK);
  pages.data = page;
  mpfa_page_conversion c;
  mpfa_page_conversion_init(&c, sizeof c);
  CHECK_REFUSED(mpfa_convert_pages(NULL, MPFA_SM90, &converted, &error), MPFA_INVALID_ARGUMENT, "conversion is NULL");
  CHECK_REFUSED(mpfa_convert_pages(&c, MPFA_SM90, &converted, &error), MPFA_INVALID_ARGUMENT, "pages is NULL");
  c.pages = &pages;
  CHECK_REFUSED(mpfa_convert_pages(&c, MPFA_SM90, &converted, &error), MPFA_INVALID_ARGUMENT, "format is NULL");
  c.format = "mxfp5";
  CHECK_REFUSED(mpfa_convert_pages(&c, MPFA_SM90, NULL, &error), MPFA_INVALID_ARGUMENT, "converted is NULL");
  CHECK_REFUSED(mpfa_convert_pages(&c, MPFA_SM90, &pages, &error), MPFA_INVALID_ARGUMENT, "a struct of its own");
  CHECK_REFUSED(mpfa_convert_pages(&c, MPFA_SM90, &converted, &error), MPFA_INVALID_ARGUMENT, "mxfp5");
  mpfa_state_merge m;
  mpfa_state_merge_init(&m, sizeof m);
  CHECK_REFUSED(mpfa_merge(NULL, MPFA_SM90, &error), MPFA_INVALID_ARGUMENT, "merge is NULL");
  CHECK_REFUSED(mpfa_merge(&m, 9, &error), MPFA_INVALID_ARGUMENT, "device is 9");
  CHECK_REFUSED(mpfa_merge(&m, MPFA_CPU, &error), MPFA_UNSUPPORTED, "on the host use");
  c.format = "mxfp4";
  CHECK_REFUSED(mpfa_convert_pages(&c, MPFA_CPU, &converted, &error), MPFA_UNSUPPORTED, "on the host use");
}
