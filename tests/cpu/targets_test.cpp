// The whole kernel on every instruction set that this machine has and the compiler offered, few and many query rows.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/tile_ops.hpp"
#include "tests/support/problems.hpp"

namespace mpfa {
namespace {

TEST(Targets, EveryInstructionSetAgreesWithTheReference) {
  const auto all = hwy::SupportedTargets();
  for (const char* recipe : {"bf16", "fp8", "mxfp4", "mpfa", "k=int8_g32,v=int4_asym,p=f32", "sage3"}) {
    for (const std::int64_t rows : {2, 45}) {
      const test::Tensor k = test::gaussian({2, 150, 2, 64}, 2);
      test::Case c(test::gaussian({2, rows, 6, 64}, 1), k, test::gaussian({2, 150, 2, 64}, 3), {recipe, 64, {150, 97}});
      c.problem.causal = keeps_wide_tokens(c.problem.recipe) ? rows == 2 : true;
      c.run(test::reference_fn(reference::Precision::f64));
      const std::vector<double> want = c.out, want_lse = c.lse;
      for (auto rest = all; rest != 0; rest &= rest - 1) {
        hwy::SetSupportedTargetsForTest(rest & -rest);
        hwy::GetChosenTarget().Update(hwy::SupportedTargets());
        SCOPED_TRACE(std::string(cpu::instruction_set()) + " " + recipe + " rows " + std::to_string(rows));
        c.run(test::attend_cpu);
        EXPECT_LE(test::relative_l2(c.out, want), 5e-3);
        EXPECT_LE(test::max_difference(c.lse, want_lse), 5e-3);
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(Targets, WhatIsNotFiniteSpoilsTheSameValuesOnEveryInstructionSet) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const auto all = hwy::SupportedTargets();
  for (const char* recipe :
       {"fp8", "int8", "nvfp4,centre=none", "kv=mxfp4,p=bf16", "q=nvfp4,k=nvfp4,v=fp8_e4m3,p=e4m3x448"}) {
    test::Tensor q = test::gaussian({1, 45, 8, 64}, 1), k = test::gaussian({1, 150, 1, 64}, 2);
    test::Tensor v = test::gaussian({1, 150, 1, 64}, 3);
    q.at(0, 3, 0, 5) = kNan, q.at(0, 20, 1, 6) = kInf, q.at(0, 30, 1, 6) = 1e35F, q.at(0, 40, 0, 1) = -kInf;
    std::fill_n(&q.at(0, 35, 0, 0), 64, 0.0F);
    k.at(0, 120, 0, 7) = kNan, k.at(0, 130, 0, 8) = kInf;
    v.at(0, 115, 0, 9) = kNan, v.at(0, 125, 0, 3) = kNan, v.at(0, 118, 0, 60) = -kInf, v.at(0, 4, 0, 60) = 1e35F;
    std::fill_n(&v.at(0, 7, 0, 0), 64, 0.0F);
    test::Case c(q, k, v, {recipe, 64, {150}});
    c.problem.threads = 1;  // tasks of 64 rows: not all panels of one see the same keys
    c.problem.causal = true;
    std::vector<double> want, want_lse;
    for (auto rest = all; rest != 0; rest &= rest - 1) {
      hwy::SetSupportedTargetsForTest(rest & -rest);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      SCOPED_TRACE(std::string(cpu::instruction_set()) + " " + recipe);
      c.run(test::attend_cpu);
      if (want.empty()) want = c.out, want_lse = c.lse;
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(std::isnan(c.out[i]), std::isnan(want[i])) << i;
        ASSERT_EQ(std::isinf(c.out[i]), std::isinf(want[i])) << i;
        if (!std::isfinite(want[i])) continue;
        ASSERT_NEAR(c.out[i], want[i], 1e-2 * std::abs(want[i]) + 1e-2) << i;
      }
      for (std::size_t i = 0; i < want_lse.size(); ++i) {
        ASSERT_EQ(std::isnan(c.lse[i]), std::isnan(want_lse[i])) << i;
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace mpfa
