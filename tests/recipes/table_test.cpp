// Every row of the table is a consistent recipe with the operands that its source names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "mpfa/recipe.hpp"

namespace mpfa {
namespace {

Recipe recipe(std::string_view text) {
  const Result<Recipe> r = parse_recipe(text);
  EXPECT_TRUE(r.ok()) << text << ": " << r.status().message();
  return r.ok() ? r.value() : Recipe{};
}

TEST(RecipeTable, EveryRowParsesAndIsConsistent) {
  std::set<std::string> seen;
  for (const std::string& name : recipe_names()) {
    const Recipe r = recipe(name);
    EXPECT_EQ(r.name, name);
    const Status status = check_recipe(r);
    EXPECT_TRUE(status.ok()) << name << ": " << status.message();
    EXPECT_EQ(recipe_text(r), name);
    EXPECT_FALSE(recipe_source(name).empty());
    EXPECT_TRUE(seen.insert(name).second) << name << " is there twice";
  }
  EXPECT_EQ(seen.size(), 24U);
  EXPECT_EQ(recipe_source("no_such_recipe"), "");
}

TEST(RecipeTable, MpfaHasFp4ScoresFp8ValuesAndTheRankOneTerm) {
  const Recipe r = recipe("mpfa");
  EXPECT_EQ(format_name(r.q), "nvfp4");
  EXPECT_EQ(format_name(r.k), "nvfp4");
  EXPECT_EQ(format_name(r.v), "fp8_e4m3");
  EXPECT_EQ(r.qk, QkProduct::fp4);
  EXPECT_EQ(r.p, PMode::e4m3);
  EXPECT_EQ(r.p_scale, 448.0F);
  EXPECT_EQ(r.denominator, Denominator::exact);
  EXPECT_EQ(r.order, KeyOrder::reverse);
  EXPECT_EQ(r.centre, Centre::mean);
  EXPECT_EQ(r.q_centre, QCentre::mean);
  EXPECT_EQ(r.rank_one, RankOne::bf16);
  EXPECT_FALSE(keeps_wide_tokens(r));
}

TEST(RecipeTable, DerivedFieldsFollowFromTheOperands) {
  EXPECT_EQ(recipe("fp8").qk, QkProduct::fp8);
  EXPECT_EQ(recipe("sage2").qk, QkProduct::int8);
  EXPECT_EQ(recipe("int4_int8").qk, QkProduct::int8);
  EXPECT_EQ(recipe("mxfp4").qk, QkProduct::wide);
  EXPECT_EQ(recipe("bitdecoding_nvfp4").qk, QkProduct::fp4);
  EXPECT_EQ(recipe("fp8_loglin").denominator, Denominator::same_codes);
  EXPECT_EQ(recipe("sage3").denominator, Denominator::same_codes);
  EXPECT_EQ(recipe("fp8").denominator, Denominator::exact);
}

TEST(RecipeTable, UnitsAndWideTokens) {
  EXPECT_EQ(commit_unit(recipe("mxfp4"), 64), 1);
  EXPECT_FALSE(keeps_wide_tokens(recipe("mxfp4")));
  EXPECT_EQ(commit_unit(recipe("sage3"), 64), 16);  // V blocks along the keys
  EXPECT_TRUE(keeps_wide_tokens(recipe("sage3")));
  EXPECT_EQ(commit_unit(recipe("sage2"), 128), 64);
  EXPECT_EQ(commit_unit(recipe("mxfp4,v_mean=page"), 128), 128);
  EXPECT_TRUE(keeps_wide_tokens(recipe("mxfp4,v_mean=page")));
  EXPECT_EQ(recipe("bitdecoding_nvfp4").recent, Recipe::recent_page);
  EXPECT_TRUE(keeps_wide_tokens(recipe("mxattention")));  // until the phase switch
  EXPECT_TRUE(keeps_wide_tokens(recipe("mxfp4,sink=4")));
  EXPECT_TRUE(keeps_wide_tokens(recipe("mxfp4,recent=page")));
}

TEST(RecipeTable, TrainingRowsNameTheirBackwardRule) {
  EXPECT_EQ(recipe("attn_qat").backward, BackwardRule::attn_qat);
  EXPECT_EQ(recipe("full_stack_fp4").backward, BackwardRule::full_stack_fp4);
  EXPECT_EQ(recipe("direct_p_fast").backward, BackwardRule::direct_p);
  EXPECT_EQ(recipe("mpfa").backward, BackwardRule::straight_through);
}

}  // namespace
}  // namespace mpfa
