// The call of a test case with all its data in device memory, against the float64 reference on the host.
#pragma once

#include <bit>
#include <cstdint>
#include <tuple>
#include <vector>

#include "tests/cuda/support/device_memory.hpp"
#include "tests/support/problems.hpp"

namespace mpfa::test {

inline constexpr double kTolerance = 3e-3;  // relative L2, outputs in bf16: the last rounding alone gives 1.7e-3

inline std::vector<std::uint16_t> to_bf16(const std::vector<float>& x) {
  std::vector<std::uint16_t> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    y[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x[i]) >> 16);
  return y;
}
inline std::vector<float> from_bf16(const std::vector<std::uint16_t>& x) {
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = std::bit_cast<float>(static_cast<std::uint32_t>(x[i]) << 16);
  return y;
}

class DeviceCall {
 public:
  /// q and out are bf16: q of the case is rounded to it.
  explicit DeviceCall(Case& c) : problem_(c.problem), tensors_(c.tensors) {
    problem_.q_dtype = problem_.out_dtype = DType::bf16;
    const std::vector<std::uint16_t> q = to_bf16(c.q.data);
    c.q.data = from_bf16(q);
    c.tensors.q = c.q.view();
    tensors_.q = contiguous(static_cast<const void*>(memory_.copy(q)), DType::bf16, c.q.shape);
    CacheView& v = tensors_.cache;
    const std::byte* host = c.cache.storage();
    pool_ = memory_.copy(host, static_cast<std::size_t>(c.cache.storage_bytes()));
    for (const std::byte** part : {&v.k.data, &v.k.scales, &v.v.data, &v.v.scales}) {
      if (*part != nullptr) *part = pool_ + (*part - host);
    }
    if (v.rank_one != nullptr) v.rank_one = pool_ + (static_cast<const std::byte*>(v.rank_one) - host);
    if (v.v_page_means != nullptr) {
      const auto at = reinterpret_cast<const std::byte*>(v.v_page_means) - host;
      v.v_page_means = reinterpret_cast<const std::uint16_t*>(pool_ + at);
    }
    const auto batch = static_cast<std::size_t>(problem_.batch);
    v.page_table = table_ = memory_.copy(v.page_table, batch * static_cast<std::size_t>(v.page_table_stride));
    v.lengths = lengths_ = memory_.copy(v.lengths, batch);
    std::vector<SequenceView> sequences;
    if (v.sequences != nullptr) sequences.assign(v.sequences, v.sequences + batch);
    for (std::size_t b = 0; b < sequences.size(); ++b) {
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
    if (v.sequences != nullptr) v.sequences = memory_.copy(sequences);
    if (v.k.global != nullptr) v.k.global = memory_.copy(v.k.global, problem_.kv_heads);
    if (v.v.global != nullptr) v.v.global = memory_.copy(v.v.global, problem_.kv_heads);
    AttentionTensors& t = tensors_;
    if (t.sinks != nullptr) t.sinks = memory_.copy(t.sinks, problem_.q_heads);
    if (t.alibi_slopes != nullptr) t.alibi_slopes = memory_.copy(t.alibi_slopes, problem_.q_heads);
    if (t.cu_seqlens_q != nullptr) t.cu_seqlens_q = memory_.copy(t.cu_seqlens_q, batch + 1);
    if (t.mask.data != nullptr) {
      std::size_t bytes = dtype_bytes(t.mask.dtype);
      for (const std::int64_t n : t.mask.shape) bytes *= static_cast<std::size_t>(n);
      t.mask.data = memory_.copy(static_cast<const std::byte*>(t.mask.data), bytes);
    }
    rows_ = static_cast<std::size_t>(c.q.shape[0] * c.q.shape[1] * problem_.q_heads);
    out_ = memory_.copy<std::uint16_t>(nullptr, rows_ * problem_.head_dim_v);
    t.out = contiguous(static_cast<void*>(out_), DType::bf16,
                       {c.q.shape[0], c.q.shape[1], problem_.q_heads, problem_.head_dim_v});
    t.lse = memory_.copy<float>(nullptr, rows_);
  }

  AttentionProblem& problem() { return problem_; }
  AttentionTensors& tensors() { return tensors_; }
  Memory& memory() { return memory_; }
  [[nodiscard]] const std::byte* pool() const { return pool_; }
  [[nodiscard]] const std::int64_t* lengths() const { return lengths_; }
  [[nodiscard]] const std::int32_t* page_table() const { return table_; }

  /// Plans, with a workspace of NaN.
  Status prepare() {
    Result<Plan> made = plan(problem_, Device::sm90);
    if (!made.ok()) return made.status();
    plan_ = made.value();
    workspace_ = memory_.copy<std::byte>(nullptr, plan_.workspace_bytes);
    return {};
  }
  /// Whatever lay in the workspace must not matter. Needs prepare.
  void fill_workspace(int byte) { require(cudaMemset(workspace_, byte, plan_.workspace_bytes)); }
  /// Outputs become NaN first. Needs prepare.
  Status enqueue(void* stream) {
    require(cudaMemsetAsync(out_, 0xFF, rows_ * problem_.head_dim_v * 2, static_cast<cudaStream_t>(stream)));
    require(cudaMemsetAsync(tensors_.lse, 0xFF, rows_ * 4, static_cast<cudaStream_t>(stream)));
    tensors_.stream = stream;
    return attend(plan_, tensors_, {workspace_, plan_.workspace_bytes});
  }
  Status run() {
    MPFA_RETURN_IF_ERROR(prepare());
    MPFA_RETURN_IF_ERROR(enqueue(nullptr));
    require(cudaDeviceSynchronize());
    EXPECT_TRUE(memory_.intact()) << "an input was changed or a guard overwritten";
    return {};
  }
  /// Rows in call order.
  [[nodiscard]] std::vector<double> out() const {
    std::vector<std::uint16_t> x(rows_ * problem_.head_dim_v);
    require(cudaMemcpy(x.data(), out_, x.size() * 2, cudaMemcpyDeviceToHost));
    const std::vector<float> f = from_bf16(x);
    return {f.begin(), f.end()};
  }
  /// [rows, q_heads] like the reference's.
  [[nodiscard]] std::vector<double> lse() const {
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
  Plan plan_;
  std::size_t rows_ = 0;
  std::uint16_t* out_ = nullptr;
  std::byte* workspace_ = nullptr;
  const std::byte* pool_ = nullptr;
  const std::int64_t* lengths_ = nullptr;
  const std::int32_t* table_ = nullptr;
};

/// Bits of outputs and LSE, NaN included.
inline std::vector<std::uint64_t> result_bits(const DeviceCall& call) {
  std::vector<std::uint64_t> bits;
  for (const double x : call.out()) bits.push_back(std::bit_cast<std::uint64_t>(x));
  for (const double x : call.lse()) bits.push_back(std::bit_cast<std::uint64_t>(x));
  return bits;
}

/// Codes of P depend on the maximum that they are relative to, which every warp has its own of.
inline double tolerance(const Recipe& r) {
  return r.p == PMode::e4m3 ? 5e-2 : kTolerance;
}

/// Runs on the card and on the host; NaN and infinities where the reference has them and nowhere else.
inline void expect_matches(Case& c) {
  DeviceCall call(c);
  const Status s = call.run();
  ASSERT_TRUE(s.ok()) << s.message();
  c.run(reference_fn(reference::Precision::f64));
  std::vector<double> out = call.out(), lse = call.lse(), expected = c.out, expected_lse = c.lse;
  const auto drop_broken = [](std::vector<double>& x, std::vector<double>& y) {
    std::size_t different = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isfinite(x[i]) && std::isfinite(y[i])) continue;
      if (std::isnan(x[i]) ? !std::isnan(y[i]) : x[i] != y[i]) ++different;
      x[i] = y[i] = 0.0;
    }
    return different;
  };
  EXPECT_EQ(drop_broken(out, expected), 0U) << "NaN or infinity in other places than the reference's";
  EXPECT_EQ(drop_broken(lse, expected_lse), 0U) << "NaN or infinity in other LSE than the reference's";
  const bool all_zero = std::all_of(expected.begin(), expected.end(), [](double x) { return x == 0.0; });
  EXPECT_LE(all_zero ? max_difference(out, expected) : relative_l2(out, expected), tolerance(c.problem.recipe));
  EXPECT_LE(max_difference(lse, expected_lse), c.problem.recipe.denominator == Denominator::exact ? 2e-3 : 3e-2);
}

}  // namespace mpfa::test
