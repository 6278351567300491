// attend() on device memory against the float64 reference on the host: the same cache, byte for byte, on both.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "tests/cuda/support/device_memory.hpp"
#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

constexpr double kTolerance = 3e-3;  // relative L2, outputs in bf16: the last rounding alone gives 1.7e-3

std::vector<std::uint16_t> to_bf16(const std::vector<float>& x) {
  std::vector<std::uint16_t> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    y[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x[i]) >> 16);
  return y;
}
std::vector<float> from_bf16(const std::vector<std::uint16_t>& x) {
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = std::bit_cast<float>(static_cast<std::uint32_t>(x[i]) << 16);
  return y;
}

/// The call of a case with all its data on the device, q and out in bf16.
class DeviceCall {
 public:
  explicit DeviceCall(Case& c) : problem_(c.problem), tensors_(c.tensors) {
    problem_.q_dtype = problem_.out_dtype = DType::bf16;
    const std::vector<std::uint16_t> q = to_bf16(c.q.data);
    c.q.data = from_bf16(q);  // the reference sees the rounded q
    c.tensors.q = c.q.view();
    tensors_.q = contiguous(static_cast<const void*>(memory_.copy(q.data(), q.size())), DType::bf16, c.q.shape);
    CacheView& v = tensors_.cache;
    const std::byte* host = c.cache.storage();
    const std::byte* pool = memory_.copy(host, static_cast<std::size_t>(c.cache.storage_bytes()));
    v.k.data = pool + (v.k.data - host), v.k.scales = pool + (v.k.scales - host);
    v.v.data = pool + (v.v.data - host), v.v.scales = pool + (v.v.scales - host);
    if (v.rank_one != nullptr) v.rank_one = pool + (static_cast<const std::byte*>(v.rank_one) - host);
    const auto batch = static_cast<std::size_t>(problem_.batch);
    v.page_table = memory_.copy(v.page_table, batch * static_cast<std::size_t>(v.page_table_stride));
    v.lengths = memory_.copy(v.lengths, batch);
    std::vector<SequenceView> sequences(v.sequences, v.sequences + batch);
    for (std::size_t b = 0; b < batch; ++b) {
      SequenceView& s = sequences[b];
      const std::int64_t wide = c.tensors.cache.lengths[b] - s.wide_begin;
      for (auto [x, tokens, d] : {std::tuple{&s.sink_k, s.sink, problem_.head_dim},
                                  {&s.sink_v, s.sink, problem_.head_dim_v},
                                  {&s.wide_k, wide, problem_.head_dim},
                                  {&s.wide_v, wide, problem_.head_dim_v}}) {
        if (*x != nullptr) *x = memory_.copy(*x, static_cast<std::size_t>(tokens * problem_.kv_heads * d));
      }
      if (s.k_mean != nullptr) s.k_mean = memory_.copy(s.k_mean, problem_.kv_heads * problem_.head_dim);
      if (s.q_mean != nullptr) s.q_mean = memory_.copy(s.q_mean, problem_.q_heads * problem_.head_dim);
      if (s.v_mean != nullptr) s.v_mean = memory_.copy(s.v_mean, problem_.kv_heads * problem_.head_dim_v);
    }
    v.sequences = memory_.copy(sequences.data(), batch);
    if (v.k.global != nullptr) v.k.global = memory_.copy(v.k.global, problem_.kv_heads);
    if (v.v.global != nullptr) v.v.global = memory_.copy(v.v.global, problem_.kv_heads);
    if (tensors_.sinks != nullptr) tensors_.sinks = memory_.copy(tensors_.sinks, problem_.q_heads);
    rows_ = static_cast<std::size_t>(c.q.shape[0] * c.q.shape[1] * problem_.q_heads);
    out_ = memory_.copy<std::uint16_t>(nullptr, rows_ * problem_.head_dim_v);
    tensors_.out = contiguous(static_cast<void*>(out_), DType::bf16,
                              {c.q.shape[0], c.q.shape[1], problem_.q_heads, problem_.head_dim_v});
    tensors_.lse = memory_.copy<float>(nullptr, rows_);
  }

  AttentionProblem& problem() { return problem_; }
  AttentionTensors& tensors() { return tensors_; }

  Status run() {
    Result<Plan> made = plan(problem_, Device::sm90);
    if (!made.ok()) return made.status();
    const std::size_t bytes = made.value().workspace_bytes;
    std::byte* workspace = memory_.copy<std::byte>(nullptr, bytes);
    require(cudaMemset(workspace, 0xFF, bytes));
    require(cudaMemset(out_, 0xFF, rows_ * problem_.head_dim_v * 2));
    MPFA_RETURN_IF_ERROR(attend(made.value(), tensors_, {workspace, bytes}));
    require(cudaDeviceSynchronize());
    return {};
  }
  /// Rows in call order.
  std::vector<double> out() const {
    std::vector<std::uint16_t> x(rows_ * problem_.head_dim_v);
    require(cudaMemcpy(x.data(), out_, x.size() * 2, cudaMemcpyDeviceToHost));
    const std::vector<float> f = from_bf16(x);
    return {f.begin(), f.end()};
  }
  /// [rows, q_heads] like the reference's.
  std::vector<double> lse() const {
    std::vector<float> x(rows_);
    require(cudaMemcpy(x.data(), tensors_.lse, rows_ * 4, cudaMemcpyDeviceToHost));
    std::vector<double> y(rows_);
    const std::int64_t sq = tensors_.q.shape[1], heads = problem_.q_heads;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(rows_); ++i) {
      const std::int64_t row = i / heads;
      y[i] = x[(row / sq * heads + i % heads) * sq + row % sq];
    }
    return y;
  }

 private:
  Memory memory_;
  AttentionProblem problem_;
  AttentionTensors tensors_;
  std::size_t rows_ = 0;
  std::uint16_t* out_ = nullptr;
};

/// Codes of P depend on the maximum that they are relative to, which every warp has its own of.
double tolerance(const Recipe& r) {
  return r.p == PMode::e4m3 ? 5e-2 : kTolerance;
}

void expect_matches(Case& c) {
  DeviceCall call(c);
  const Status s = call.run();
  ASSERT_TRUE(s.ok()) << s.message();
  c.run(reference_fn(reference::Precision::f64));
  EXPECT_LE(relative_l2(call.out(), c.out), tolerance(c.problem.recipe));
  EXPECT_LE(max_difference(call.lse(), c.lse), 2e-3);
}

class Recipes : public testing::TestWithParam<const char*> {};

/// Scales of heads for formats that have no others.
std::vector<float> global_of(const std::string& recipe) {
  return recipe.find("static") == std::string::npos ? std::vector<float>() : std::vector<float>{0.05F, 0.08F};
}

TEST_P(Recipes, DecodeAsTheReference) {
  for (const std::int64_t d : {64, 128}) {
    for (const std::int64_t page : {16, 64}) {
      const Tensor k = with_bias(heavy_tail({3, 200, 2, d}, 1), 3, 20.0F);
      Case c(gaussian({3, 1, 8, d}, 2), k, gaussian({3, 200, 2, d}, 3),
             {GetParam(), page, {200, 0, 77}, global_of(GetParam())});
      expect_matches(c);
    }
  }
}

TEST_P(Recipes, VerifyStepWithWindowSinksAndSoftcap) {
  const std::vector<float> sinks{0.5F, -1.0F, 2.0F, 0.0F};
  Case c(gaussian({2, 5, 4, 128}, 4), gaussian({2, 150, 2, 128}, 5), gaussian({2, 150, 2, 128}, 6),
         {GetParam(), 32, {150, 90}, global_of(GetParam())});
  c.problem.causal = true;
  c.problem.window_left = 60;
  c.problem.softcap = 20.0F;
  c.problem.sinks = true;
  c.tensors.sinks = sinks.data();
  expect_matches(c);
}

INSTANTIATE_TEST_SUITE_P(, Recipes,
                         testing::Values("mxfp4", "mxfp4_ocp", "kv=mxfp4_ceil,p=bf16", "nvfp4", "nvfp4_4over6", "bf16",
                                         "int4", "kv=int4,p=bf16,centre=mean", "kv=int4_g32,p=bf16",
                                         "kv=int4_g128,p=bf16", "kv=int8,p=bf16", "kv=int8_g64,p=bf16",
                                         "kv=fp8_e4m3,p=bf16", "kv=fp8_e4m3_static,p=bf16", "kv=mxfp4_f32,p=bf16",
                                         "kv=mxfp4_f32_b64,p=bf16", "mpfa,q=bf16,p=bf16,q_centre=none,rank_one=off",
                                         "k=nvfp4_4over6,v=fp8_e4m3_static,p=bf16,v_mean=mean", "mpfa", "mpfa,p=bf16",
                                         "mpfa,p=bf16,rank_one=split", "mpfa,p=bf16,rank_one=off",
                                         "mpfa_static,centre=mean,q_centre=mean",
                                         "mpfa,q_centre=none,rank_one=off,p=bf16", "fp8", "fp8,p=bf16",
                                         "fp8,denominator=same_codes", "int8"),
                         [](const auto& p) {
                           std::string name;
                           for (const char ch : std::string(p.param)) name += std::isalnum(ch) != 0 ? ch : '_';
                           return name;
                         });

class WideTokens : public testing::TestWithParam<const char*> {};

TEST_P(WideTokens, DecodeAsTheReference) {
  for (const std::int64_t d : {64, 128, 256}) {
    const Tensor k = with_sink_token(heavy_tail({5, 300, 2, d}, 1), 2.0F);
    Case c(gaussian({5, 1, 8, d}, 2), k, gaussian({5, 300, 2, d}, 3), {GetParam(), 64, {300, 0, 3, 65, 192}});
    expect_matches(c);
  }
}

TEST_P(WideTokens, EveryRowHasItsOwnLimit) {
  for (const std::int64_t window : {std::int64_t{-1}, std::int64_t{20}, std::int64_t{90}}) {
    Case c(gaussian({3, 9, 4, 128}, 4), with_bias(gaussian({3, 700, 2, 128}, 5), 3, 9.0F),
           gaussian({3, 700, 2, 128}, 6), {GetParam(), 16, {700, 70, 5}});
    c.problem.causal = true;
    c.problem.window_left = window;
    expect_matches(c);
    c.problem.softcap = 20.0F;
    expect_matches(c);
  }
}

TEST_P(WideTokens, LongSequencesInManyPieces) {
  Case c(gaussian({1, 2, 8, 128}, 7), gaussian({1, 9000, 2, 128}, 8), gaussian({1, 9000, 2, 128}, 9),
         {GetParam(), 64, {}});
  c.problem.causal = true;
  expect_matches(c);
}

INSTANTIATE_TEST_SUITE_P(, WideTokens,
                         testing::Values("mxfp4,sink=16", "mxfp4,recent=32", "nvfp4,recent=page",
                                         "mxfp4,sink=4,recent=33,centre=mean,v_mean=mean"),
                         [](const auto& p) {
                           std::string name;
                           for (const char ch : std::string(p.param)) name += std::isalnum(ch) != 0 ? ch : '_';
                           return name;
                         });

TEST(BatchInvariant, ARowHasTheSameBitsAloneAndInABatch) {
  const Tensor q = gaussian({3, 1, 8, 128}, 7), k = gaussian({3, 5000, 2, 128}, 8), v = gaussian({3, 5000, 2, 128}, 9);
  Case all(q, k, v, {"mxfp4", 64, {5000, 3000, 12}});
  DeviceCall batch(all);
  batch.problem().batch_invariant = true;
  ASSERT_TRUE(batch.run().ok());
  const auto first = [](const Tensor& x) {
    Tensor y({1, x.shape[1], x.shape[2], x.shape[3]});
    std::copy_n(x.data.begin(), y.data.size(), y.data.begin());
    return y;
  };
  Case one(first(q), first(k), first(v), {"mxfp4", 64, {5000}});
  DeviceCall alone(one);
  alone.problem().batch_invariant = true;
  ASSERT_TRUE(alone.run().ok());
  const std::vector<double> x = batch.out(), y = alone.out();
  EXPECT_TRUE(std::equal(y.begin(), y.end(), x.begin()));
}

TEST(BadInput, IsNamed) {
  Case c(gaussian({1, 1, 4, 128}, 1), gaussian({1, 64, 2, 128}, 2), gaussian({1, 64, 2, 128}, 3), {"mxfp4", 64, {}});
  DeviceCall call(c);
  call.problem().recipe = recipe("fp8_loglin");
  EXPECT_NE(call.run().message().find("use p=bf16, or p=e4m3"), std::string::npos);
  call.problem().recipe = recipe("kv=fp8_e4m3,q=fp8_e5m2,p=bf16");
  EXPECT_NE(call.run().message().find("Q is fp8_e5m2; use q=bf16"), std::string::npos);
  call.problem().recipe = recipe("kv=fp8_e5m2,p=bf16");
  EXPECT_NE(call.run().message().find("K is fp8_e5m2 and V is fp8_e5m2; both must be"), std::string::npos);
  call.problem().recipe = recipe("mxfp4");
  call.problem().alibi = true;
  EXPECT_NE(call.run().message().find("ALiBi"), std::string::npos);
  call.problem().alibi = false;
  call.tensors().q.data = static_cast<const std::byte*>(call.tensors().q.data) + 2;
  EXPECT_NE(call.run().message().find("multiples of 16 bytes"), std::string::npos);
}

}  // namespace
}  // namespace mpfa::test
