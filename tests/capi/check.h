/* What the parts of the C ABI test share. */
#pragma once

#include <stdio.h>

#include "mpfa/mpfa.h"

extern int failures;
extern mpfa_error error;

#define CHECK(condition)                                                                               \
  do {                                                                                                 \
    if (!(condition)) {                                                                                \
      printf("%s:%d: %s is false; last message: %s\n", __FILE__, __LINE__, #condition, error.message); \
      ++failures;                                                                                      \
    }                                                                                                  \
  } while (0)
#define CHECK_NEAR(a, b, tolerance) CHECK(fabs((double)(a) - (double)(b)) <= (tolerance))
#define CHECK_REFUSED(call, code, part) \
  do {                                  \
    CHECK((call) == (code));            \
    CHECK(error.status == (code));      \
    CHECK(strstr(error.message, part)); \
  } while (0)

enum { kHeads = 4, kKvHeads = 2, kDim = 32, kMaxTokens = 200 };

mpfa_recipe* recipe_of(const char* text);
void test_editing(void);
void test_rope(void);
void test_latent(void);
void test_pages(void);
void test_page_rope(void);
void test_devices(void);
