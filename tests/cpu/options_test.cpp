// Options and layouts of a call that must not change its numbers, or change them in a known way.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tests/support/filled.hpp"

namespace mpfa::test {
namespace {

AttentionProblem small_problem(const std::string& text, std::int64_t rows) {
  AttentionProblem p;
  p.recipe = recipe(text);
  p.batch = 2;
  p.max_q = rows;
  p.max_kv = 97;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.head_dim = p.head_dim_v = 64;
  p.causal = true;
  return p;
}

TEST(Rotation, ChangesNothingButRoundingAtAnyEvenHeadDim) {
  for (const std::int64_t d : {2, 40, 46, 80, 96, 112, 128, 192}) {
    for (const std::int64_t rows : {1, 20}) {
      std::vector<std::vector<double>> outs, lses;
      for (const char* rotate : {"", ",rotate=qk", ",rotate=qkv"}) {
        AttentionProblem p = small_problem(std::string(kExactRecipe) + rotate, rows);
        p.head_dim = p.head_dim_v = d;
        const Filled f(p, 3);
        ASSERT_TRUE(attend_cpu(f.problem, f.tensors, outs.emplace_back(), lses.emplace_back()).ok());
      }
      for (std::size_t i = 1; i < outs.size(); ++i) {
        EXPECT_LE(max_difference(outs[i], outs[0]), 2e-5) << d;
        EXPECT_LE(max_difference(lses[i], lses[0]), 2e-5) << d;
      }
    }
  }
}

TEST(Rotation, GoesWithEveryMask) {
  unsigned seed = 0;
  for (const char* text :
       {"nvfp4,rotate=qkv,p=f32", "k=mxfp4,v=int4,rotate=qk,sink=4,p=f32", "mpfa,rotate=qkv,p=f32"}) {
    for (const std::int64_t rows : {1, 5, 20}) {
      for (const MaskTensor mask : {MaskTensor::none, MaskTensor::boolean, MaskTensor::additive}) {
        for (const std::int64_t window : {-1, 30}) {
          for (const bool options : {false, true}) {
            AttentionProblem p = small_problem(text, rows);
            p.mask = mask;
            p.window_left = window;
            p.sinks = p.alibi = options;
            p.softcap = options ? 8.0F : 0.0F;
            SCOPED_TRACE(fmt::format("{} rows {} mask {} window {} options {}", text, rows, static_cast<int>(mask),
                                     window, options));
            Filled(p, seed++).compare();
          }
        }
      }
    }
  }
}

TEST(Lse, MayBeLeftOutWithoutChangingTheOutput) {
  for (const std::int64_t rows : {1, 5, 20}) {
    const Filled f(small_problem("mpfa", rows), 1);
    std::vector<double> want, lse;
    ASSERT_TRUE(attend_cpu(f.problem, f.tensors, want, lse).ok());
    const Plan plan = mpfa::plan(f.problem, Device::cpu).value();
    GuardedBytes scratch(plan.workspace_bytes), out(want.size() * sizeof(float));
    AttentionTensors t = f.tensors;
    t.out = contiguous(static_cast<void*>(out.data()), DType::f32, {2, rows, 4, 64});
    t.lse = nullptr;
    ASSERT_TRUE(attend(plan, t, {scratch.data(), plan.workspace_bytes}).ok());
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(reinterpret_cast<const float*>(out.data())[i], want[i]);
  }
}

TEST(Strides, OfQueriesAndOutputsMayHoldAnythingBetween) {
  for (const std::int64_t rows : {1, 5, 20}) {
    const Filled f(small_problem("q=f32,k=mxfp4,v=fp8_e4m3,p=f32", rows), 1);
    std::vector<double> want, lse;
    ASSERT_TRUE(attend_cpu(f.problem, f.tensors, want, lse).ok());
    // Heads outermost: [head][sequence][row] with 7 numbers between rows.
    const std::array<std::int64_t, 4> stride{rows * 71, 71, 2 * rows * 71, 1};
    std::vector<float> q(static_cast<std::size_t>(4 * 2 * rows * 71), NAN), out(q.size(), 5.0F);
    const auto* from = static_cast<const float*>(f.tensors.q.data);
    const auto at = [&](std::int64_t i) {  // of element i of [2, rows, 4, 64]
      const std::int64_t c = i % 64, h = i / 64 % 4, r = i / 256 % rows, b = i / 256 / rows;
      return b * stride[0] + r * stride[1] + h * stride[2] + c;
    };
    for (std::int64_t i = 0; i < 2 * rows * 256; ++i) q[at(i)] = from[i];
    const Plan plan = mpfa::plan(f.problem, Device::cpu).value();
    GuardedBytes scratch(plan.workspace_bytes);
    AttentionTensors t = f.tensors;
    t.q.data = q.data();
    t.q.stride = stride;
    t.out = {out.data(), DType::f32, {2, rows, 4, 64}, stride};
    ASSERT_TRUE(attend(plan, t, {scratch.data(), plan.workspace_bytes}).ok());
    for (std::int64_t i = 0; i < 2 * rows * 256; ++i) {
      ASSERT_EQ(out[at(i)], want[i]) << i;
      out[at(i)] = 5.0F;
    }
    EXPECT_EQ(out, std::vector<float>(out.size(), 5.0F)) << "numbers between rows were written";
  }
}

TEST(PageTable, MayNameAPageTwiceAndInAnyOrder) {
  // Prompt A A B as pages 0 0 1, next to a cache that really holds A A B.
  for (const char* text : {"bf16", "fp8", "mxfp4,centre=none", "k=int8_g32,v=int4_asym,p=f32"}) {
    Tensor k = gaussian({1, 192, 2, 64}, 1), v = gaussian({1, 192, 2, 64}, 2);
    std::copy_n(k.data.begin(), 64 * 128, k.data.begin() + 64 * 128);
    std::copy_n(v.data.begin(), 64 * 128, v.data.begin() + 64 * 128);
    for (const std::int64_t rows : {1, 20}) {
      Case c(gaussian({1, rows, 4, 64}, 3), k, v, {text, 64, {}});
      c.problem.causal = true;
      c.run(attend_cpu);
      const std::vector<double> want = c.out;
      const std::int32_t* table = c.tensors.cache.page_table;
      const std::vector<std::int32_t> shared{table[1], table[1], table[2]};
      c.tensors.cache.page_table = shared.data();
      c.run(attend_cpu);
      EXPECT_EQ(c.out, want) << text;
    }
  }
}

// A loop over the sequences would take seconds here.
TEST(Plan, TakesNoLongerForMoreSequences) {
  AttentionProblem p = small_problem("mpfa", 512);
  p.threads = 2;
  const auto best = [&p](std::int64_t batch) {
    p.batch = batch;
    auto least = std::chrono::nanoseconds::max();
    for (int i = 0; i < 50; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_TRUE(mpfa::plan(p, Device::cpu).ok());
      least = std::min<std::chrono::nanoseconds>(least, std::chrono::steady_clock::now() - begin);
    }
    return least;
  };
  EXPECT_LE(best(1 << 20), 20 * best(1));
}

TEST(Workspace, OfOneSplitDoesNotGrowWithTheKeys) {
  AttentionProblem p = small_problem("mpfa", 512);
  p.threads = 2;
  const auto bytes = [&p](std::int64_t max_kv) {
    p.max_kv = max_kv;
    return mpfa::plan(p, Device::cpu).value().workspace_bytes;
  };
  EXPECT_EQ(bytes(512), bytes(4096));
  // Beyond that, results of splits: less than what one key in eight would take as float32 scores of its rows.
  EXPECT_LE(bytes(1 << 17) - bytes(4096), (1 << 17) / 4096 * 2 * 2 * 256 * (64 + 64) * sizeof(float));
}

}  // namespace
}  // namespace mpfa::test
