#include <mpfa/mpfa.h>
#include <string.h>

int main(void) {
  mpfa_error error = MPFA_ERROR_INIT;
  mpfa_recipe* recipe = NULL;
  if (mpfa_check_abi(MPFA_ABI_VERSION, &error) != MPFA_OK) return 1;
  if (mpfa_recipe_parse("mxfp4", &recipe, &error) != MPFA_OK) return 2;
  const int same = strcmp(mpfa_recipe_text(recipe), "mxfp4") == 0;
  mpfa_recipe_destroy(recipe);
  return same ? 0 : 3;
}
