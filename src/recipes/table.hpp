// The named recipes: a row is a name, the fields that differ from the default Recipe, and where it comes from.
#pragma once

#include <span>
#include <string_view>

namespace mpfa {

struct RecipeRow {
  std::string_view name;
  std::string_view fields;  // in the grammar of parse_recipe
  std::string_view source;
};

[[nodiscard]] std::span<const RecipeRow> recipe_rows();
/// The row of that name, or null.
[[nodiscard]] const RecipeRow* find_recipe_row(std::string_view name);

}  // namespace mpfa
