// Fields that contradict each other are refused with both names and a way out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "mpfa/recipe.hpp"

namespace mpfa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(std::string_view text) {
  const Result<Recipe> r = parse_recipe(text);
  EXPECT_FALSE(r.ok()) << text;
  return r.ok() ? std::string() : r.status().message();
}

TEST(RecipeCheck, RefusesContradictions) {
  EXPECT_THAT(refusal("nvfp4,rank_one=bf16"), AllOf(HasSubstr("rank_one=bf16"), HasSubstr("q_centre=none")));
  EXPECT_THAT(refusal("sage3,rank_one=split"), AllOf(HasSubstr("rank_one=split"), HasSubstr("q_centre=block")));
  EXPECT_THAT(refusal("sage3,denominator=exact"), AllOf(HasSubstr("nvfp4_two_level"), HasSubstr("same_codes")));
  EXPECT_THAT(refusal("fp8_loglin,denominator=exact"), HasSubstr("e4m3_loglin"));
  EXPECT_THAT(refusal("int4_int8,v=fp8_e4m3@keys"), HasSubstr("v_residual=on with v=fp8_e4m3@keys"));
  EXPECT_THAT(refusal("int4_int8,v_mean=mean"), HasSubstr("v_residual=on with v_mean=mean"));
  EXPECT_THAT(refusal("mxfp4,q_terms=2"), AllOf(HasSubstr("q_terms=2"), HasSubstr("q=bf16")));
  EXPECT_THAT(refusal("mxfp4,qk=fp4"), AllOf(HasSubstr("qk=fp4"), HasSubstr("q=bf16"), HasSubstr("qk=wide")));
  EXPECT_THAT(refusal("mxfp4,q=nvfp4@keys"), HasSubstr("q=nvfp4@keys"));
  EXPECT_THAT(refusal("fp8,q=fp8_e4m3_static"), HasSubstr("calibrated"));
}

TEST(RecipeCheck, ScaleOfPIsAPowerOfTwoOr448) {
  for (const char* text : {"fp8,p=e4m3x0", "fp8,p=e4m3x449", "fp8,p=e4m3x-1", "fp8,p=e4m3x512", "fp8,p=e4m3x100",
                           "fp8,p=e4m3xnan", "fp8,p=e4m3xinf", "fp8,p=e4m3_loglinx3"}) {
    EXPECT_THAT(refusal(text), HasSubstr("448")) << text;
  }
  for (const char* text : {"fp8,p=e4m3x", "fp8,p=e4m3y2", "fp8,p=e4m3x2x", "fp8,p=e4m3_"}) {
    EXPECT_THAT(refusal(text), HasSubstr("field p cannot be")) << text;
  }
  EXPECT_TRUE(parse_recipe("fp8,p=e4m3x1").ok());
  EXPECT_TRUE(parse_recipe("fp8,p=e4m3_loglinx448").ok());
}

TEST(RecipeCheck, RecipesBuiltByHandAreHeldToTheSameRules) {
  Recipe r = parse_recipe("mxfp4").value();
  EXPECT_TRUE(check_recipe(r).ok());
  r.recent = -2;
  EXPECT_THAT(check_recipe(r).message(), HasSubstr("recent=-2"));
  r.recent = 0;
  r.sink = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(check_recipe(r).message(), HasSubstr("sink=9223372036854775807"));
  r.sink = 0;
  r.p_scale = 2.0F;
  EXPECT_THAT(check_recipe(r).message(), HasSubstr("p_scale 2 with p=bf16"));
  r.p_scale = 1.0F;
  r.logit_cap = -1.0F;
  EXPECT_THAT(check_recipe(r).message(), HasSubstr("logit_cap=-1"));
  r.logit_cap = 0.0F;
  r.k.block_channels = 7;
  EXPECT_THAT(check_recipe(r).message(), HasSubstr("field k is a format without a name"));
  r = Recipe{};
  r.order = static_cast<KeyOrder>(9);
  EXPECT_THAT(check_recipe(r).message(), AllOf(HasSubstr("field order"), HasSubstr("forward, reverse")));
}

}  // namespace
}  // namespace mpfa
