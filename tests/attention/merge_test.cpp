#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "mpfa/attention.hpp"

namespace mpfa {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kDim = 5;

struct State {
  std::vector<float> o;
  float lse;
};

State merge(const State& a, const State& b) {
  State s{std::vector<float>(kDim), 0.0F};
  merge_states(1, kDim, a.o.data(), &a.lse, b.o.data(), &b.lse, s.o.data(), &s.lse);
  return s;
}

bool same_bits(const State& a, const State& b) {
  return std::memcmp(a.o.data(), b.o.data(), kDim * sizeof(float)) == 0 && a.lse == b.lse;
}

State random_state() {
  State s{std::vector<float>(kDim), 0.0F};
  for (float& x : s.o) x = static_cast<float>(*rc::gen::inRange(-4000, 4000)) / 1000.0F;
  s.lse = static_cast<float>(*rc::gen::inRange(-90000, 90000)) / 1000.0F;
  return s;
}

TEST(Merge, EmptySideChangesNoBit) {
  rc::check("identity", [] {
    const State x = random_state();
    const State empty{std::vector<float>(kDim, std::nanf("")), kEmpty};  // whatever its row holds
    RC_ASSERT(same_bits(merge(x, empty), x));
    RC_ASSERT(same_bits(merge(empty, x), x));
  });
}

TEST(Merge, TwoEmptySidesGiveZeroAndMinusInfinity) {
  const State empty{std::vector<float>(kDim, std::nanf("")), kEmpty};
  EXPECT_TRUE(same_bits(merge(empty, empty), State{std::vector<float>(kDim, 0.0F), kEmpty}));
}

TEST(Merge, IsCommutativeAndAssociative) {
  rc::check("order does not matter", [] {
    const State a = random_state();
    const State b = random_state();
    const State c = random_state();
    RC_ASSERT(same_bits(merge(a, b), merge(b, a)));
    const State left = merge(merge(a, b), c);
    const State right = merge(a, merge(b, c));
    RC_ASSERT(std::abs(left.lse - right.lse) <= 2e-7F * (1.0F + std::abs(left.lse)) * 4.0F);
    for (std::int64_t i = 0; i < kDim; ++i) RC_ASSERT(std::abs(left.o[i] - right.o[i]) <= 5e-5F);
  });
}

TEST(Merge, WeighsByLse) {
  const State s = merge({std::vector<float>(kDim, 1.0F), 0.0F}, {std::vector<float>(kDim, 5.0F), std::log(3.0F)});
  EXPECT_FLOAT_EQ(s.o[2], 4.0F);
  EXPECT_FLOAT_EQ(s.lse, std::log(4.0F));
}

TEST(Merge, HugeLsesDoNotOverflow) {
  const State s = merge({std::vector<float>(kDim, 1.0F), 70000.0F}, {std::vector<float>(kDim, 5.0F), -70000.0F});
  EXPECT_EQ(s.o[0], 1.0F);
  EXPECT_EQ(s.lse, 70000.0F);
}

TEST(Merge, OutputMayAliasEitherSide) {
  std::vector<float> o{1.0F, 2.0F, 3.0F, 4.0F};
  std::vector<float> lse{0.0F, kEmpty};
  const std::vector<float> o_b{5.0F, 6.0F, 7.0F, 8.0F};
  const std::vector<float> lse_b{0.0F, 1.0F};
  merge_states(2, 2, o.data(), lse.data(), o_b.data(), lse_b.data(), o.data(), lse.data());
  EXPECT_EQ(o, (std::vector<float>{3.0F, 4.0F, 7.0F, 8.0F}));
  EXPECT_EQ(lse[1], 1.0F);
}

}  // namespace
}  // namespace mpfa
