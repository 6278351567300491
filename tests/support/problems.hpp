// Small attention problems for tests: random tensors, a cache made from them, and one call through any implementation.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mpfa/mpfa.hpp"

namespace mpfa::test {

inline constexpr double kMinusInf = -std::numeric_limits<double>::infinity();

/// Contiguous float32 [batch, tokens, heads, d].
struct Tensor {
  std::array<std::int64_t, 4> shape{};
  std::vector<float> data;

  Tensor() = default;
  explicit Tensor(std::array<std::int64_t, 4> s, float value = 0.0F)
      : shape(s), data(static_cast<std::size_t>(s[0] * s[1] * s[2] * s[3]), value) {}
  [[nodiscard]] TensorView view() const { return contiguous(data.data(), DType::f32, shape); }
  [[nodiscard]] float& at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) {
    return data[((b * shape[1] + t) * shape[2] + h) * shape[3] + c];
  }
};

inline Tensor gaussian(std::array<std::int64_t, 4> shape, unsigned seed) {
  Tensor x(shape);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (float& v : x.data) v = normal(rng);
  return x;
}

/// Student-t with 3 degrees of freedom.
inline Tensor heavy_tail(std::array<std::int64_t, 4> shape, unsigned seed) {
  Tensor x(shape);
  std::mt19937 rng(seed);
  std::student_t_distribution<float> tail(3.0F);
  for (float& v : x.data) v = tail(rng);
  return x;
}

/// One channel with a large constant, as a K projection with a bias has.
inline Tensor with_bias(Tensor k, std::int64_t channel, float bias) {
  for (std::size_t i = channel; i < k.data.size(); i += static_cast<std::size_t>(k.shape[3])) k.data[i] += bias;
  return k;
}

/// Token 0 has a large key in every channel: rows with a positive sum give it nearly all their weight.
inline Tensor with_sink_token(Tensor k, float size) {
  for (std::int64_t b = 0; b < k.shape[0]; ++b) {
    for (std::int64_t h = 0; h < k.shape[2]; ++h) {
      for (std::int64_t c = 0; c < k.shape[3]; ++c) k.at(b, 0, h, c) = size;
    }
  }
  return k;
}

inline Recipe recipe(const std::string& text) {
  Result<Recipe> r = parse_recipe(text);
  EXPECT_TRUE(r.ok()) << text << ": " << r.status().message();
  return r.ok() ? r.value() : Recipe{};
}

/// No rounding anywhere: what identities are checked with.
inline const char* const kExactRecipe = "q=f32,k=f32,v=f32,p=f32";

/// out [rows, q_heads, head_dim_v], lse [rows, q_heads], rows in call order.
using AttendFn = std::function<Status(const AttentionProblem&, const AttentionTensors&, std::vector<double>& out,
                                      std::vector<double>& lse)>;

inline AttendFn reference_fn(reference::Precision precision) {
  return [precision](const AttentionProblem& p, const AttentionTensors& t, std::vector<double>& out,
                     std::vector<double>& lse) { return reference::attend(p, t, precision, out, lse); };
}

/// Called with every call that attend_cpu made and that succeeded.
inline std::function<void(const AttentionProblem&, const AttentionTensors&)> on_attend_cpu;

/// Bytes between guards, filled with 0xFF (NaN in every float type) so that nothing may rely on what was there.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t size) : bytes_(size + 2 * kGuard + kAlign, std::byte{0xFF}) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data() + kGuard);
    at_ = kGuard + (kAlign - address % kAlign) % kAlign;
    size_ = size;
    std::fill_n(bytes_.begin(), at_, kMark);
    std::fill(bytes_.begin() + at_ + size, bytes_.end(), kMark);
  }
  [[nodiscard]] std::byte* data() { return bytes_.data() + at_; }
  [[nodiscard]] bool intact() const {
    const auto marked = [](std::byte b) { return b == kMark; };
    return std::all_of(bytes_.begin(), bytes_.begin() + at_, marked) &&
           std::all_of(bytes_.begin() + at_ + size_, bytes_.end(), marked);
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 256, kAlign = 64;
  static constexpr std::byte kMark{0xA7};
  std::vector<std::byte> bytes_;
  std::ptrdiff_t at_ = 0, size_ = 0;
};

inline double value_at(const std::byte* data, DType t, std::size_t i) {
  float x = 0.0F;
  const BlockFormat f = parse_format(t == DType::f32 ? "f32" : t == DType::bf16 ? "bf16" : "fp16").value();
  ConstPageBytes row;
  row.data = data + i * dtype_bytes(t);
  dequantise_tokens(f, 1, 0, 1, row, 1.0F, &x, 1, 1);
  return x;
}

/// The library's own path: plan and attend on the CPU. Outputs and workspace begin as NaN and are guarded at both ends.
inline Status attend_cpu_on(const Executor& executor, const AttentionProblem& p, const AttentionTensors& given,
                            std::vector<double>& out, std::vector<double>& lse) {
  Result<Plan> made = plan(p, Device::cpu);
  if (!made.ok()) return made.status();
  AttentionTensors t = given;
  const std::int64_t rows = t.q.shape[0] * t.q.shape[1];
  const auto n = static_cast<std::size_t>(rows * p.q_heads);
  const std::size_t size = n * static_cast<std::size_t>(p.head_dim_v);
  GuardedBytes o(size * dtype_bytes(p.out_dtype)), l(n * sizeof(float)), scratch(made.value().workspace_bytes);
  t.out = contiguous(static_cast<void*>(o.data()), p.out_dtype, {t.q.shape[0], t.q.shape[1], p.q_heads, p.head_dim_v});
  t.lse = reinterpret_cast<float*>(l.data());
  MPFA_RETURN_IF_ERROR(attend(made.value(), t, {scratch.data(), made.value().workspace_bytes}, executor));

  EXPECT_TRUE(o.intact() && l.intact() && scratch.intact()) << "the call wrote outside of its buffers";
  if (on_attend_cpu) on_attend_cpu(p, t);
  out.resize(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = value_at(o.data(), p.out_dtype, i);
  lse.assign(n, 0.0);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      const std::int64_t sq = t.q.shape[1];  // ragged: all rows are one "sequence" of the lse
      lse[r * p.q_heads + h] = t.lse[(r / sq * p.q_heads + h) * sq + r % sq];
    }
  }
  return {};
}

inline Status attend_cpu(const AttentionProblem& p, const AttentionTensors& t, std::vector<double>& out,
                         std::vector<double>& lse) {
  return attend_cpu_on({}, p, t, out, lse);
}

/// The implementations a rule is checked on.
struct Implementation {
  std::string name;
  AttendFn attend;
  double tolerance;  // absolute, for values of order one
};
inline void PrintTo(const Implementation& i, std::ostream* os) {
  *os << i.name;
}
inline std::vector<Implementation> implementations() {
  return {{"reference_f64", reference_fn(reference::Precision::f64), 1e-9},
          {"reference_f32", reference_fn(reference::Precision::f32), 1e-5},
          {"cpu_tiled", attend_cpu, 1e-5}};
}

/// A cache that holds k and v, and the call that attends q to it. Members may be changed before run().
class Case {
 public:
  struct Options {
    std::string recipe = kExactRecipe;
    std::int64_t page_size = 16;
    std::vector<std::int64_t> lengths;  // empty: all tokens of k
    std::vector<float> global{};        // calibrated scales of K and V, [kv_heads]
  };

  Case(Tensor q_in, const Tensor& k, const Tensor& v, Options o) : q(std::move(q_in)), cache(make(q, k, v, o)) {
    problem.recipe = cache.config().recipe;
    problem.batch = k.shape[0];
    problem.max_q = q.shape[1];
    problem.max_kv = k.shape[1];
    problem.q_heads = q.shape[2];
    problem.kv_heads = k.shape[2];
    problem.head_dim = k.shape[3];
    problem.head_dim_v = v.shape[3];
    problem.page_size = o.page_size;
    tensors.q = q.view();
    tensors.cache = cache.view();
  }

  /// Rows of the result in call order. A failure is a test failure.
  void run(const AttendFn& attend) {
    const Status s = attend(problem, tensors, out, lse);
    ASSERT_TRUE(s.ok()) << s.message();
  }
  [[nodiscard]] double out_at(std::int64_t row, std::int64_t head, std::int64_t c) const {
    return out[(row * problem.q_heads + head) * problem.head_dim_v + c];
  }
  [[nodiscard]] double lse_at(std::int64_t row, std::int64_t head) const { return lse[row * problem.q_heads + head]; }

  Tensor q;
  PagedCache cache;
  AttentionProblem problem;
  AttentionTensors tensors;
  std::vector<double> out, lse;

 private:
  static PagedCache make(const Tensor& q, const Tensor& k, const Tensor& v, const Options& o) {
    CacheConfig c;
    c.recipe = recipe(o.recipe);
    c.batch = k.shape[0];
    c.page_size = o.page_size;
    c.num_pages = c.batch * ((k.shape[1] + o.page_size - 1) / o.page_size + 1);
    c.q_heads = q.shape[2];
    c.kv_heads = k.shape[2];
    c.head_dim = k.shape[3];
    c.head_dim_v = v.shape[3];
    c.k_global = c.v_global = o.global;
    Result<PagedCache> made = PagedCache::create(c);
    if (!made.ok()) throw std::runtime_error(made.status().message());
    PagedCache cache = std::move(made).value();
    // Recipes that centre Q read as many query rows as tokens: the rows are repeated to have them.
    Tensor queries({k.shape[0], k.shape[1], q.shape[2], q.shape[3]});
    for (std::size_t i = 0; i < queries.data.size() && !q.data.empty(); ++i)
      queries.data[i] = q.data[i % q.data.size()];
    const TensorView q_view = queries.view();
    const Status s = cache.append(k.view(), v.view(), &q_view, nullptr, o.lengths.empty() ? nullptr : o.lengths.data());
    if (!s.ok()) throw std::runtime_error(s.message());
    return cache;
  }
};

inline double relative_l2(const std::vector<double>& x, const std::vector<double>& y) {
  double error = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    error += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(error / size);
}

inline double max_difference(const std::vector<double>& x, const std::vector<double>& y) {
  double worst = x.size() == y.size() ? 0.0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (x[i] != y[i]) worst = std::max(worst, std::isnan(x[i] - y[i]) ? HUGE_VAL : std::abs(x[i] - y[i]));
  }
  return worst;
}

}  // namespace mpfa::test
