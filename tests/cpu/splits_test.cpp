// Sequences that the kernel splits at multiples of 4096 keys: lengths around a multiple, one row and a few, every
// option that reaches across a split.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/filled.hpp"

namespace mpfa::test {
namespace {

constexpr std::int64_t kSplit = 4096, kDim = 16;

AttentionProblem long_problem(const std::string& text, std::int64_t rows, std::int64_t max_kv) {
  AttentionProblem p;
  p.recipe = recipe(text);
  p.batch = 1;
  p.max_q = rows;
  p.max_kv = max_kv;
  p.q_heads = 4;
  p.kv_heads = 1;
  p.head_dim = kDim;
  p.head_dim_v = 24;
  p.page_size = 128;
  p.causal = true;
  p.threads = 2;
  return p;
}

class Splits : public ::testing::TestWithParam<const char*> {};

TEST_P(Splits, AgreeWithTheReferenceAroundTheirEnds) {
  for (const std::int64_t n : {kSplit - 1, kSplit, kSplit + 1, kSplit + 64, 2 * kSplit + 1}) {
    for (const std::int64_t rows : {1, 4}) {
      SCOPED_TRACE(std::to_string(n) + " keys, rows " + std::to_string(rows));
      Filled(long_problem(GetParam(), rows, n), 3).compare();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Splits,
                         ::testing::Values("q=f32,k=bf16,v=bf16,p=f32", "q=f32,k=mxfp4,v=nvfp4,p=f32", "mpfa,p=f32",
                                           "q=f32,k=fp8_e5m2,v=fp8_e4m3,p=bf16",
                                           "q=f32,k=int8,v=int4_asym,p=f32,order=reverse,sink=3,recent=9",
                                           "q=f32,k=nvfp4,v=nvfp4@keys,p=bf16,sink=4,recent=page"),
                         [](const auto& test) { return fmt::format("r{}", test.index); });

/// The reference over keys [first, first + count) of a decode call.
void reference_part(const Filled& whole, std::int64_t first, std::int64_t count, std::vector<float>& out,
                    std::vector<float>& lse) {
  AttentionTensors t = whole.tensors;
  SequenceView sequence = t.cache.sequences[0];
  sequence.packed_end = sequence.wide_begin = count;
  t.cache.page_table += first / whole.problem.page_size;
  t.cache.lengths = &count;
  t.cache.sequences = &sequence;
  std::vector<double> o, l;
  const Status s = reference::attend(whole.problem, t, reference::Precision::f64, o, l);
  ASSERT_TRUE(s.ok()) << s.message();
  out.assign(o.begin(), o.end());
  lse.assign(l.begin(), l.end());
}

TEST(RoundedP, OfEverySplitIsThatOfItsKeysAlone) {
  for (const char* text :
       {"mpfa", "fp8", "fp8_loglin", "mpfa,p=nvfp4_underflow,rank_one=split", "k=mxfp4,v=mxfp4,p=mxfp4",
        "mxfp4,p=mxfp4_direct_fast", "fp8,p=nvfp4_two_level,order=reverse"}) {
    for (const std::int64_t n : {kSplit + 3, 2 * kSplit, 2 * kSplit + 65}) {
      Filled whole(long_problem(text, 1, n), 9);
      const std::int64_t dv = whole.problem.head_dim_v;
      std::vector<float> out(4 * dv, 0.0F), lse(4, -INFINITY), o, l;
      for (std::int64_t first = 0; first < n; first += kSplit) {
        ASSERT_NO_FATAL_FAILURE(reference_part(whole, first, std::min(kSplit, n - first), o, l));
        merge_states(4, dv, out.data(), lse.data(), o.data(), l.data(), out.data(), lse.data());
      }
      std::vector<double> got, got_lse;
      ASSERT_TRUE(attend_cpu(whole.problem, whole.tensors, got, got_lse).ok());
      EXPECT_LE(relative_l2(got, {out.begin(), out.end()}), kernel_tolerance(whole.problem.recipe)) << text << " " << n;
      EXPECT_LE(max_difference(got_lse, {lse.begin(), lse.end()}), 5e-3) << text << " " << n;
    }
  }
}

TEST(SplitOptions, ReachAcrossSplits) {
  const char* text = "q=f32,k=mxfp4,v=fp8_e4m3,p=f32";
  const std::int64_t n = 2 * kSplit + 70;
  const auto check = [&](const char* what, auto change) {
    SCOPED_TRACE(what);
    AttentionProblem p = long_problem(text, 3, n);
    change(p);
    Filled(p, 5).compare();
  };
  check("sinks", [](AttentionProblem& p) { p.sinks = true; });
  check("window over two splits", [](AttentionProblem& p) { p.window_left = kSplit; });
  check("window inside the last split", [](AttentionProblem& p) { p.window_left = 9, p.sinks = true; });
  check("window that ends at a split", [](AttentionProblem& p) { p.window_left = 70 + kSplit - 1; });
  check("no causal mask", [](AttentionProblem& p) { p.causal = false; });
  check("ALiBi and softcap", [](AttentionProblem& p) { p.alibi = true, p.softcap = 3.0F; });
  check("boolean mask", [](AttentionProblem& p) { p.mask = MaskTensor::boolean; });
  check("additive mask", [](AttentionProblem& p) { p.mask = MaskTensor::additive; });
  check("ragged, one sequence with splits", [](AttentionProblem& p) { p.batch = 3, p.total_q = 9; });
  check("32 query heads for a KV head", [](AttentionProblem& p) { p.q_heads = 32; });
  check("rows of several blocks: no split", [](AttentionProblem& p) { p.max_q = 40; });
}

TEST(SplitOptions, SinkCountsOnceHoweverManySplits) {
  // 8 visible keys of logit 0 and value 1 in the last split, the others outside the window.
  for (const std::int64_t n : {std::int64_t{8}, kSplit + 4, 2 * kSplit + 8}) {
    const std::vector<float> sinks{1.5F};
    Case c(Tensor({1, 1, 1, 4}), Tensor({1, n, 1, 4}), Tensor({1, n, 1, 4}, 1.0F), {kExactRecipe, 64, {}});
    c.problem.causal = true;
    c.problem.window_left = 7;
    c.problem.sinks = true;
    c.tensors.sinks = sinks.data();
    c.run(attend_cpu);
    EXPECT_NEAR(c.out[0], 0.640939, 1e-6) << n;
    EXPECT_NEAR(c.lse[0], std::log(8.0 + std::exp(1.5)), 1e-6) << n;
  }
}

TEST(SplitOptions, ErrorOfEqualKeysDoesNotGrowWithTheirNumber) {
  // Equal logits: the mean of V = 1 +- 1/8, whatever P is rounded to.
  for (const char* text :
       {"q=f32,k=bf16,v=bf16,p=f32", "k=fp8_e4m3,v=fp8_e4m3,p=e4m3x448", "k=mxfp4,v=bf16,p=e4m3_loglin"}) {
    for (const std::int64_t n : {std::int64_t{1} << 10, std::int64_t{1} << 13, std::int64_t{1} << 18}) {
      Tensor v({1, n, 1, 8});
      for (std::size_t i = 0; i < v.data.size(); ++i) v.data[i] = i / 8 % 2 == 0 ? 1.125F : 0.875F;
      Case c(Tensor({1, 1, 1, 8}), Tensor({1, n, 1, 8}, 1.0F), v, {text, 64, {}});
      c.run(attend_cpu);
      EXPECT_NEAR(c.out[0], 1.0, 0.03) << text << " " << n;
      EXPECT_NEAR(c.lse[0], std::log(static_cast<double>(n)), 1e-3) << text << " " << n;
    }
  }
}

TEST(SplitOptions, WorkspaceServesEveryLengthUpToTheCapacity) {
  // One plan, lengths from none to all; attend_cpu guards the workspace's ends.
  const AttentionProblem p = long_problem("mpfa,p=f32", 2, 3 * kSplit);
  for (const std::int64_t n : {std::int64_t{2}, kSplit, kSplit + 1, 3 * kSplit}) Filled(p, 7, {n}).compare();
}

TEST(SplitOptions, AtMost32OfThemSoTheWorkspaceDoesNotGrowWithTheKeys) {
  const auto bytes = [](std::int64_t max_kv) {
    return plan(long_problem("mpfa", 1, max_kv), Device::cpu).value().workspace_bytes;
  };
  EXPECT_LT(bytes(kSplit), bytes(2 * kSplit));
  EXPECT_EQ(bytes(32 * kSplit), bytes(1000 * kSplit));
  AttentionProblem p = long_problem("q=f32,k=mxfp4,v=fp8_e4m3,p=f32", 1, 33 * kSplit + 5);
  p.page_size = 256;
  Filled(p, 11).compare();
}

}  // namespace
}  // namespace mpfa::test
