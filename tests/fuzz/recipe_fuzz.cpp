// Any bytes: parse_recipe either refuses with a message or gives a recipe that prints to a text that parses to it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "mpfa/recipe.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const mpfa::Result<mpfa::Recipe> recipe = mpfa::parse_recipe(text);
  if (!recipe.ok()) {
    if (recipe.status().message().empty()) std::abort();
    return 0;
  }
  if (!mpfa::check_recipe(recipe.value()).ok()) std::abort();
  const mpfa::Result<mpfa::Recipe> again = mpfa::parse_recipe(mpfa::recipe_text(recipe.value()));
  if (!again.ok() || !(again.value() == recipe.value())) std::abort();
  return 0;
}
