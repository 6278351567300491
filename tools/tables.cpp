#include "tables.hpp"

#include <fmt/format.h>

#include "mpfa/mpfa.hpp"
#include "output.hpp"
#include "recipes/fields.hpp"

namespace mpfa::cli {
namespace {

// Sizes are given for the commonest head.
constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kPageSize = 64;

double format_bytes(const BlockFormat& f) {
  const PageGeometry g = page_geometry(f, kHeadDim, kPageSize);
  return static_cast<double>(g.data_bytes() + g.scale_bytes()) / static_cast<double>(kPageSize);
}

double recipe_bytes(const Recipe& r) {
  return bytes_per_token(r, 1, 1, kHeadDim, kHeadDim, kPageSize);
}

}  // namespace

std::string formats_report(bool json) {
  Json all = Json::array();
  std::vector<std::vector<std::string>> rows{
      {"format", "bits", fmt::format("bytes/token d={}", kHeadDim), "tokens together", "what it is"}};
  for (const std::string& name : format_names()) {
    const Result<BlockFormat> format = parse_format(name);
    if (!format.ok()) continue;
    const BlockFormat& f = format.value();
    all.push_back({{"name", name},
                   {"element_bits", element_bits(f.element)},
                   {"bytes_per_token_d128", format_bytes(f)},
                   {"tokens_together", f.block_keys},
                   {"description", format_description(f)}});
    rows.push_back({name, std::to_string(element_bits(f.element)), fmt::format("{}", format_bytes(f)),
                    std::to_string(f.block_keys), format_description(f)});
  }
  return json ? json_text(all) : table_text(rows);
}

std::string recipes_report(bool json) {
  Json all = Json::array();
  std::vector<std::vector<std::string>> rows{
      {"recipe", "q", "k", "v", "p", fmt::format("bytes/token d={}", kHeadDim), "source"}};
  for (const std::string& name : recipe_names()) {
    const Result<Recipe> recipe = parse_recipe(name);
    if (!recipe.ok()) continue;
    const Recipe& r = recipe.value();
    Json fields = Json::object();
    for (const RecipeField& field : recipe_fields()) {
      if (field.name != "kv") fields[std::string(field.name)] = field.get(r);
    }
    all.push_back({{"name", name},
                   {"source", recipe_source(name)},
                   {"bytes_per_token_d128", recipe_bytes(r)},
                   {"fields", fields}});
    rows.push_back({name, format_name(r.q), format_name(r.k), format_name(r.v), find_recipe_field("p")->get(r),
                    fmt::format("{}", recipe_bytes(r)), recipe_source(name)});
  }
  return json ? json_text(all) : table_text(rows);
}

}  // namespace mpfa::cli
