// Recipes as text: round trip, overrides, and errors that name the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "mpfa/recipe.hpp"

namespace mpfa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Recipe recipe(std::string_view text) {
  const Result<Recipe> r = parse_recipe(text);
  EXPECT_TRUE(r.ok()) << text << ": " << r.status().message();
  return r.ok() ? r.value() : Recipe{};
}

std::string error(std::string_view text) {
  const Result<Recipe> r = parse_recipe(text);
  EXPECT_FALSE(r.ok()) << text;
  return r.ok() ? std::string() : r.status().message();
}

std::string any_of(std::vector<std::string> words) {
  return *rc::gen::elementOf(words);
}

// A random recipe, or nothing where the fields drawn contradict each other.
Recipe random_recipe() {
  std::vector<std::string> names = recipe_names();
  names.emplace_back("custom");
  Recipe r;
  r.name = any_of(names);
  const auto format = [] { return parse_format(any_of(format_names())).value(); };
  r.q = format();
  r.k = format();
  r.v = format();
  r.qk = *rc::gen::element(QkProduct::wide, QkProduct::fp8, QkProduct::fp4, QkProduct::int8);
  r.q_terms = *rc::gen::element(1, 2);
  r.p = static_cast<PMode>(*rc::gen::inRange(0, 10));
  const bool scaled = r.p == PMode::e4m3 || r.p == PMode::e4m3_loglin;
  r.p_scale = scaled ? *rc::gen::element(1.0F, 64.0F, 256.0F, 448.0F) : 1.0F;
  r.denominator = *rc::gen::element(Denominator::exact, Denominator::same_codes);
  r.order = *rc::gen::element(KeyOrder::forward, KeyOrder::reverse);
  r.centre = static_cast<Centre>(*rc::gen::inRange(0, 3));
  r.q_centre = static_cast<QCentre>(*rc::gen::inRange(0, 4));
  r.rank_one = static_cast<RankOne>(*rc::gen::inRange(0, 3));
  r.v_mean = static_cast<VMean>(*rc::gen::inRange(0, 4));
  r.v_residual = *rc::gen::arbitrary<bool>();
  r.rotate = static_cast<Rotate>(*rc::gen::inRange(0, 3));
  r.sink = *rc::gen::inRange<std::int64_t>(0, 100);
  r.recent = *rc::gen::inRange<std::int64_t>(-1, 100);
  r.phase_switch = *rc::gen::arbitrary<bool>();
  r.logit_cap = static_cast<float>(*rc::gen::inRange(0, 1000000)) / 7.0F;
  r.backward = static_cast<BackwardRule>(*rc::gen::inRange(0, 4));
  return r;
}

TEST(RecipeText, ConsistentRecipesSurviveTheRoundTrip) {
  EXPECT_TRUE(rc::check("parse_recipe(recipe_text(r)) == r", [] {
    Recipe r = random_recipe();
    if (!check_recipe(r).ok()) {  // one step towards consistency keeps most draws
      r.qk = QkProduct::wide;
      r.q_terms = 1;
      r.denominator = Denominator::same_codes;
      r.v_residual = false;
      if (r.q_centre == QCentre::none || r.q_centre == QCentre::block) r.rank_one = RankOne::off;
    }
    RC_PRE(check_recipe(r).ok());
    const Result<Recipe> parsed = parse_recipe(recipe_text(r));
    if (!parsed.ok()) RC_FAIL(recipe_text(r) + ": " + parsed.status().message());
    RC_ASSERT(parsed.value() == r);
  }));
}

TEST(RecipeText, AnyBytesAreAnAnswerNotACrash) {
  EXPECT_TRUE(rc::check("parse_recipe takes any bytes", [](const std::string& text) {
    const Result<Recipe> r = parse_recipe(text);
    RC_ASSERT(r.ok() || !r.status().message().empty());
  }));
  const std::string message = error(std::string("mpfa,\0\xff=1", 9));
  EXPECT_THAT(message, AllOf(HasSubstr("\\x00\\xff"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(error(std::string(5000, 'a')), AllOf(HasSubstr("5000"), HasSubstr("4096")));
  EXPECT_THAT(error(std::string(4000, ',')), HasSubstr("unknown name"));
  EXPECT_THAT(error(std::string(4000, '=')), HasSubstr("unknown field"));
}

TEST(RecipeText, TheOrderOfTheFieldsDoesNotMatter) {
  EXPECT_EQ(recipe("qk=wide,k=nvfp4,q=nvfp4"), recipe("q=nvfp4,k=nvfp4,qk=wide"));
  EXPECT_EQ(recipe("v=fp8_e4m3,kv=nvfp4"), recipe("kv=nvfp4,v=fp8_e4m3"));
  EXPECT_EQ(recipe(" mpfa , centre = none "), recipe("mpfa,center=none"));
  EXPECT_EQ(recipe("mxfp4,rotate=hadamard"), recipe("mxfp4,rotate=qk"));
}

TEST(RecipeText, OverridesCarryTheFieldsThatDependOnThem) {
  const Recipe uncentred = recipe("mpfa,q_centre=none");
  EXPECT_EQ(uncentred.rank_one, RankOne::off);
  EXPECT_EQ(uncentred.centre, Centre::mean);
  EXPECT_EQ(recipe("mpfa,centre=none").rank_one, RankOne::bf16);
  EXPECT_EQ(recipe("mpfa,rank_one=off").q_centre, QCentre::mean);     // leaves the term out on purpose
  EXPECT_EQ(recipe("nvfp4,q_centre=mean").rank_one, RankOne::split);  // never by accident
  EXPECT_EQ(recipe("mpfa,p=mxfp4").denominator, Denominator::same_codes);
  EXPECT_EQ(recipe("mpfa,p=e4m3").p_scale, 256.0F);
  EXPECT_EQ(recipe("mpfa,k=mxfp4").qk, QkProduct::wide);  // one instruction takes one kind of scale
  EXPECT_EQ(recipe("bitdecoding_nvfp4,q=bf16").q_terms, 1);
}

TEST(RecipeText, PrintsTheShortestText) {
  EXPECT_EQ(recipe_text(recipe("mpfa,centre=mean,p=e4m3x256")), "mpfa,p=e4m3x256");
  EXPECT_EQ(recipe_text(recipe("mxfp4,k=nvfp4,v=nvfp4")), "mxfp4,kv=nvfp4");
  EXPECT_EQ(recipe_text(recipe("mpfa,rank_one=off,q_centre=none")), "mpfa,q_centre=none");
  EXPECT_EQ(recipe_text(recipe("k=nvfp4")), "q=bf16,k=nvfp4,v=bf16");
  EXPECT_EQ(recipe_text(recipe("bf16,recent=page,sink=4")), "bf16,sink=4,recent=page");
}

TEST(RecipeText, ErrorsNameTheFieldAndWhatIsAllowed) {
  EXPECT_THAT(error("mpfaa"), AllOf(HasSubstr("'mpfaa'"), HasSubstr("did you mean 'mpfa'"), HasSubstr("sage3")));
  EXPECT_THAT(error("mpfa,k=nvpf4"), AllOf(HasSubstr("field k"), HasSubstr("did you mean 'nvfp4'"), HasSubstr("int8")));
  EXPECT_THAT(error("mpfa,centr=mean"), AllOf(HasSubstr("'centr'"), HasSubstr("did you mean 'centre'")));
  EXPECT_THAT(error("mpfa,centre=always"), AllOf(HasSubstr("field centre"), HasSubstr("none, mean, static")));
  EXPECT_THAT(error("mpfa,sink=-1"), AllOf(HasSubstr("field sink"), HasSubstr("'-1'")));
  EXPECT_THAT(error("mpfa,sink=99999999999999999999"), HasSubstr("field sink"));
  EXPECT_THAT(error("mpfa,recent=pages"), AllOf(HasSubstr("field recent"), HasSubstr("did you mean 'page'")));
  EXPECT_THAT(error("mpfa,logit_cap=nan"), HasSubstr("field logit_cap"));
  EXPECT_THAT(error("mpfa,sink=1,sink=2"), HasSubstr("sink is given twice"));
  EXPECT_THAT(error("mpfa,nvfp4"), HasSubstr("'nvfp4' is not field=value"));
  EXPECT_THAT(error("mpfa,"), HasSubstr("empty"));
  EXPECT_THAT(error("  "), HasSubstr("empty"));
}

}  // namespace
}  // namespace mpfa
