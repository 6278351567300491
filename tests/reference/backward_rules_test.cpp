// Along which axis and under which lift each backward rule rounds.
#include "attention/reference/backward_rules.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace mpfa::reference {
namespace {

constexpr std::int64_t kN = 16;

/// dS [16, 16] of 1e-3 with one 1 at (0, 0), and unit K and Q of one channel.
struct Products {
  std::vector<double> ds = std::vector<double>(kN * kN, 1e-3);
  KeyOperands<double> keys;
  QueryOperands<double> q;

  Products() {
    ds[0] = 1.0;
    keys.n = kN;
    keys.k_given.assign(kN, 0.01F);
    keys.k_given[0] = 6.0F;
    keys.k.assign(kN, 1.003);
    q.q_given = keys.k_given;
    q.q.assign(kN, 1.003);
  }
  [[nodiscard]] ScoreProducts<double> of(BackwardRule rule) const { return rule_score_products(rule, ds, keys, q, 1); }
};

TEST(BackwardRules, StraightThroughRoundsNothing) {
  const Products x;
  const ScoreProducts<double> s = x.of(BackwardRule::straight_through);
  EXPECT_EQ(s.ds_k, x.ds);
  EXPECT_EQ(s.ds_q, x.ds);
  EXPECT_EQ(s.k, x.keys.k);
  EXPECT_EQ(s.q, x.q.q);
}

TEST(BackwardRules, FullStackBlocksLieAlongTheSummedAxis) {
  const ScoreProducts<double> s = Products().of(BackwardRule::full_stack_fp4);
  // dS K sums over keys: the large entry empties its row and leaves its column alone; dS^T Q the other way round.
  EXPECT_EQ(s.ds_k[1], 0.0);
  EXPECT_NEAR(s.ds_k[kN], 1e-3, 1e-4);
  EXPECT_EQ(s.ds_q[kN], 0.0);
  EXPECT_NEAR(s.ds_q[1], 1e-3, 1e-4);
  EXPECT_NEAR(s.ds_k[0], 1.0, 0.05);
  EXPECT_EQ(s.k[0], 6.0);
  EXPECT_EQ(s.k[1], 0.0);
  EXPECT_EQ(s.q[1], 0.0);
}

TEST(BackwardRules, AttnQatIsBf16) {
  const ScoreProducts<double> s = Products().of(BackwardRule::attn_qat);
  EXPECT_EQ(s.k[0], 1.0);  // 1.003 lies below the middle of 1 and 1 + 2^-7
  EXPECT_NEAR(s.ds_k[1], 1e-3, 4e-6);
}

TEST(BackwardRules, DirectPUsesFixedLifts) {
  const ScoreProducts<double> s = Products().of(BackwardRule::direct_p);
  EXPECT_EQ(s.ds_k[0], 1.0);
  EXPECT_EQ(s.ds_k[1], 0x1p-10);  // 64e-3 is nearest to 1/16
  Recipe r;
  r.backward = BackwardRule::direct_p;
  const std::vector<double> p{1.0, 1.03, 0x1p-17, 0x1p-19};
  EXPECT_EQ(rule_probabilities(r, p, p, 0.0), (std::vector<double>{1.0, 1.0, 0x1p-17, 0.0}));
  // e5m2 keeps what e4m3 without a lift would flush: 4e-5 is 3 x 2^-16.
  EXPECT_EQ(rule_d_out(BackwardRule::direct_p, std::vector<double>{1.1, 4e-5}), (std::vector<double>{1.0, 0x1.8p-15}));
  KeyOperands<double> keys;
  keys.v_given = {60.0F, 1.05F, 0x1p-12F};
  keys.v.assign(3, 0.0);
  keys.v_mean = {0.0F};
  EXPECT_EQ(rule_values(BackwardRule::direct_p, keys), (std::vector<double>{56.0, 1.0, 0x1p-12}));
}

}  // namespace
}  // namespace mpfa::reference
