// Recipes as text: "name,field=value,..." and back.
#include <fmt/format.h>

#include <array>

#include "mpfa/recipe.hpp"
#include "recipes/fields.hpp"
#include "recipes/suggest.hpp"
#include "recipes/table.hpp"
#include "text/printable.hpp"

namespace mpfa {
namespace {

constexpr std::size_t kMaxText = 4096;
constexpr std::string_view kCustom = "custom";

Status refuse(std::string message) {
  return {StatusCode::invalid_argument, "recipe: " + std::move(message)};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::vector<std::string> field_names() {
  std::vector<std::string> names;
  for (const RecipeField& field : recipe_fields()) names.emplace_back(field.name);
  return names;
}

Status unknown_name(std::string_view name) {
  return refuse(fmt::format("unknown name {}{}; allowed: {}, or fields such as k=nvfp4,v=fp8_e4m3", printable(name),
                            suggestion(name, recipe_names()), fmt::join(recipe_names(), ", ")));
}

Status set_field(const RecipeField& field, std::string_view value, Recipe& r) {
  if (field.set(r, value)) return {};
  const std::vector<std::string> allowed = field.allowed();
  return refuse(fmt::format("field {} cannot be {}{}; allowed: {}", field.name, printable(value),
                            suggestion(value, allowed), fmt::join(allowed, ", ")));
}

// Values by field, then applied in the order of the fields, so that the order of the text does not matter.
Status apply_fields(std::string_view text, Recipe& r) {
  const std::span<const RecipeField> fields = recipe_fields();
  std::vector<std::string_view> values(fields.size());
  std::vector<bool> given(fields.size(), false);
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    const std::size_t equals = item.find('=');
    if (item.empty()) return refuse("an item between commas is empty; write field=value or remove the comma");
    if (equals == std::string_view::npos) {
      return refuse(fmt::format("{} is not field=value; only the first item may be a recipe name", printable(item)));
    }
    const std::string_view name = trimmed(item.substr(0, equals));
    const RecipeField* const field = find_recipe_field(name);
    if (field == nullptr) {
      const std::vector<std::string> names = field_names();
      return refuse(fmt::format("unknown field {}{}; allowed: {}", printable(name), suggestion(name, names),
                                fmt::join(names, ", ")));
    }
    const auto index = static_cast<std::size_t>(field - fields.data());
    if (given[index]) return refuse(fmt::format("field {} is given twice; keep one of them", field->name));
    given[index] = true;
    values[index] = trimmed(item.substr(equals + 1));
  }
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (given[i]) MPFA_RETURN_IF_ERROR(set_field(fields[i], values[i], r));
  }
  return {};
}

Result<Recipe> named_recipe(const RecipeRow& row) {
  Recipe r;
  MPFA_RETURN_IF_ERROR(apply_fields(row.fields, r));
  r.name = row.name;
  return r;
}

// Appends the field to the text and applies it to `r`, with what it sets in turn.
void print_field(const RecipeField& field, const std::string& value, Recipe& r, std::string& text) {
  field.set(r, value);
  text += fmt::format("{}{}={}", text.empty() ? "" : ",", field.name, value);
}

}  // namespace

Result<Recipe> parse_recipe(std::string_view text) {
  if (text.size() > kMaxText) {
    return refuse(fmt::format("the text has {} characters; at most {} are allowed", text.size(), kMaxText));
  }
  text = trimmed(text);
  if (text.empty()) return refuse("the text is empty; give a name such as mxfp4, or fields such as k=nvfp4");

  Recipe r;
  r.name = kCustom;
  const std::size_t comma = std::min(text.find(','), text.size());
  const std::string_view first = trimmed(text.substr(0, comma));
  if (first.find('=') == std::string_view::npos) {
    const RecipeRow* const row = find_recipe_row(first);
    if (row == nullptr) return unknown_name(first);
    Result<Recipe> base = named_recipe(*row);
    if (!base.ok() || comma == text.size()) return base;
    r = base.value();
    text.remove_prefix(comma + 1);
  }
  MPFA_RETURN_IF_ERROR(apply_fields(text, r));
  MPFA_RETURN_IF_ERROR(check_recipe(r));
  return r;
}

std::string recipe_text(const Recipe& r) {
  Recipe printed;
  std::string text;
  if (const RecipeRow* const row = find_recipe_row(r.name); row != nullptr) {
    const Result<Recipe> base = named_recipe(*row);
    if (base.ok()) printed = base.value();
    text = r.name;
  } else {
    for (const std::string_view name : {"q", "k", "v"}) {
      const RecipeField& field = *find_recipe_field(name);
      print_field(field, field.get(r), printed, text);
    }
  }
  for (const RecipeField& field : recipe_fields()) {
    const bool is_kv = field.name == "kv";
    if (is_kv && (r.k != r.v || printed.k == r.k || printed.v == r.v)) continue;  // k or v alone says it shorter
    if (const std::string value = field.get(r); value != field.get(printed)) print_field(field, value, printed, text);
  }
  return text;
}

}  // namespace mpfa
