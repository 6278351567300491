// Prefill: what a row becomes must not depend on how rows were cut into tasks.
#include "cpu/many_rows.hpp"

#include <gtest/gtest.h>

#include "tests/support/problems.hpp"

namespace mpfa {
namespace {

TEST(ManyRows, ThreadsChangeNoBit) {
  for (const char* recipe :
       {"bf16", "mxfp4", "mpfa", "mxattention_uos", "k=int8_g32,v=int4_asym,p=f32,sink=3,recent=9"}) {
    for (const std::int64_t rows : {3, 34, 45}) {
      const test::Tensor k = test::gaussian({2, 150, 2, 64}, 2);
      test::Case c(test::gaussian({2, rows, 6, 64}, 1), k, test::gaussian({2, 150, 2, 64}, 3), {recipe, 64, {150, 97}});
      c.problem.causal = true;
      c.problem.threads = 1;
      c.run(test::attend_cpu);
      const auto out = c.out, lse = c.lse;
      c.problem.threads = 40;  // tasks of fewer rows: 32, 32, 32 and 6 instead of 64 and 38
      c.run(test::attend_cpu);
      EXPECT_EQ(c.out, out) << recipe << " rows " << rows;
      EXPECT_EQ(c.lse, lse) << recipe << " rows " << rows;
    }
  }
}

}  // namespace
}  // namespace mpfa
