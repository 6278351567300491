// The fields of a recipe as text: how each is read and printed, and what it may be.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mpfa/recipe.hpp"

namespace mpfa {

struct RecipeField {
  std::string_view name;
  std::string_view alias;                  // other accepted spelling, may be empty
  bool (*set)(Recipe&, std::string_view);  // false when the value is not allowed; the recipe is then unchanged
  std::string (*get)(const Recipe&);       // the value as text
  std::vector<std::string> (*allowed)();   // for messages
};

/// In the order in which a text's fields are applied: a field that sets others comes before them.
[[nodiscard]] std::span<const RecipeField> recipe_fields();
/// By name or alias, or null.
[[nodiscard]] const RecipeField* find_recipe_field(std::string_view name);

/// 16 or 32 bits: nothing is quantised.
[[nodiscard]] bool is_wide(const BlockFormat& f);
/// P in 4 bits.
[[nodiscard]] bool is_four_bit(PMode p);
/// The narrowest tensor-core operand type that takes both formats as they are stored.
[[nodiscard]] QkProduct natural_product(const BlockFormat& q, const BlockFormat& k);
/// Codes that do not add up to the probabilities' own sum need a denominator from the same codes.
[[nodiscard]] Denominator natural_denominator(PMode p);

/// Longest sink or recent range that a recipe may name.
inline constexpr std::int64_t kMaxWideTokens = std::int64_t{1} << 30;

}  // namespace mpfa
