// A row's bits depend on its own sequence: not on batch mates, their order, threads, the capacity of the plan or the
// number of times it is asked.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/mixed_batch.hpp"

namespace mpfa::test {
namespace {

class BatchInvariance : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr std::int64_t kBatch = 64, kMaxKv = 8300;
  MixedBatch batch{GetParam(), kBatch};

  Answer alone(std::int64_t id) const {
    const Selection one(batch.cache, {id}, batch.rows);
    return one.run(one.problem(1, kMaxKv));
  }
};

TEST_P(BatchInvariance, EveryRowIsAsIfAlone) {
  std::vector<Answer> want;
  for (std::int64_t id = 0; id < kBatch; ++id) want.push_back(alone(id));
  for (const std::int64_t size : {1, 2, 8, 64}) {
    for (std::int64_t first = 0; first < std::min<std::int64_t>(kBatch, 4 * size); first += size) {
      std::vector<std::int64_t> ids(static_cast<std::size_t>(size));
      std::iota(ids.begin(), ids.end(), first);
      if (first / size % 2 == 1) std::reverse(ids.begin(), ids.end());
      const Selection some(batch.cache, ids, batch.rows);
      for (const int threads : {1, 2, 3}) {
        const Answer all = some.run(some.problem(threads, kMaxKv));
        for (std::size_t i = 0; i < ids.size(); ++i) {
          ASSERT_EQ(some.rows_of(all, i), want[ids[i]])
              << "sequence " << ids[i] << " of " << size << ", threads " << threads;
        }
      }
    }
  }
}

TEST_P(BatchInvariance, CapacityOfThePlanChangesNothing) {
  for (const std::int64_t id : {0, 1, 3, 7}) {
    const Selection one(batch.cache, {id}, batch.rows);
    AttentionProblem p = one.problem(2, kMaxKv);
    const Answer want = one.run(p);
    p.max_kv = 3 * kMaxKv;
    p.max_q = 500;
    p.total_q = 700;
    EXPECT_EQ(one.run(p), want) << id;
    p.max_kv = batch.lengths[id];
    EXPECT_EQ(one.run(p), want) << id;
  }
}

TEST_P(BatchInvariance, RepeatedCallsAreEqual) {
  const Selection some(batch.cache, {0, 3, 4, 1, 6, 5}, batch.rows);
  const AttentionProblem p = some.problem(3, kMaxKv);
  const Answer want = some.run(p);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(some.run(p), want) << i;
}

TEST_P(BatchInvariance, DenseRowsEqualRaggedOnes) {
  const Selection one(batch.cache, {4}, batch.rows);
  AttentionProblem p = one.problem(2, kMaxKv);
  const Answer want = one.run(p);
  AttentionTensors t = one.tensors();
  t.cu_seqlens_q = nullptr;
  p.total_q = 0;
  Answer dense;
  ASSERT_TRUE(attend_cpu(p, t, dense.out, dense.lse).ok());
  EXPECT_EQ(dense, want);
}

TEST_P(BatchInvariance, ALongPromptIsCutIntoTasksWithoutATrace) {
  const Selection one(batch.cache, {0}, batch.rows);  // for the shapes of a problem
  AttentionProblem p = one.problem(1, 700);
  p.batch = 1;
  p.max_q = 600;
  p.total_q = 0;
  Answer want;
  for (const int threads : {1, 2, 3, 8}) {
    p.threads = threads;
    const Filled f(p, 4);
    Answer a;
    ASSERT_TRUE(attend_cpu(f.problem, f.tensors, a.out, a.lse).ok());
    if (threads == 1) want = a;
    EXPECT_EQ(a, want) << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, BatchInvariance,
                         ::testing::Values("bf16", "fp8", "int8", "mxfp4,centre=none", "nvfp4", "mpfa", "mpfa_static",
                                           "k=int8,v=int4_asym,p=e4m3x256,order=reverse,sink=3,recent=9",
                                           "k=nvfp4,v=nvfp4@keys,p=nvfp4_underflow,sink=4,recent=page",
                                           "mxfp4,centre=none,v_mean=page"),
                         [](const auto& test) { return std::to_string(test.index); });

}  // namespace
}  // namespace mpfa::test
