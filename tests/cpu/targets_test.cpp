// The whole kernel on every instruction set that this machine has and the compiler offered, few and many query rows.
#include <gtest/gtest.h>
#include <hwy/targets.h>

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

}  // namespace
}  // namespace mpfa
