// Everything that a problem asks for, filled with numbers: a cache with tokens, q, sinks, slopes, masks. Unused memory
// is poisoned.
#pragma once

#include <cstring>
#include <memory>

#include "tests/support/problems.hpp"

namespace mpfa::test {

/// Largest error that the kernel may have against the reference in float64. Steps of 4-bit P are coarse: a logit that
/// differs in the last bit may land on the next code, so the bound on a whole output is wider there.
inline double kernel_tolerance(const Recipe& r) {
  if (keeps_wide_tokens(r) && r.p == PMode::f32) return 2e-3;  // P of the bf16 tokens is bf16
  switch (r.p) {
    case PMode::f32: return 1e-5;
    case PMode::bf16: return 2e-3;
    case PMode::e4m3:
    case PMode::e4m3_loglin: return 5e-3;
    default: return 3e-2;
  }
}

/// Normal numbers from a table, as fast as a copy.
inline Tensor normal_from_table(std::array<std::int64_t, 4> shape, unsigned seed) {
  static const std::vector<float> table = gaussian({1, 1, 1, 65521}, 5).data;
  Tensor x(shape);
  std::size_t at = std::size_t{seed} * 7919 % table.size();
  for (float& v : x.data) {
    v = table[at];
    at = at + 1 == table.size() ? 0 : at + 1;
  }
  return x;
}

/// FNV-1a over 8 bytes at a time.
inline std::uint64_t hash_bytes(const void* data, std::size_t n) {
  std::uint64_t h = 0xCBF29CE484222325ULL;
  for (std::size_t i = 0; i < n; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(data) + i, std::min<std::size_t>(8, n - i));
    h = (h ^ word) * 0x100000001B3ULL;
  }
  return h;
}

class Filled {
 public:
  /// Sequence b has `lengths[b]` tokens (empty: a little less than the one before it), the newest max_q of them
  /// appended in a call of their own. total_q > 0 asks for ragged rows; sequence b then has max(1, max_q - b).
  /// shared_kv: V is the first channels of K.
  explicit Filled(AttentionProblem p, unsigned seed, std::vector<std::int64_t> lengths = {}, bool shared_kv = false)
      : problem(std::move(p)), lengths_(std::move(lengths)), seed_(seed), shared_kv_(shared_kv), cache(make_cache()) {
    const bool given = !lengths_.empty();
    for (std::int64_t b = 0; !given && b < problem.batch; ++b) {
      lengths_.push_back(std::max(problem.max_q, problem.max_kv - 27 * b));
    }
    std::memset(cache.storage(), 0xFF, static_cast<std::size_t>(cache.storage_bytes()));
    fill_cache();
    fill_rows();
    fill_options();
    tensors.cache = cache.view();
  }

  /// Reference in float64 and kernel on the same bytes; a difference, or a changed input, is a test failure.
  void compare() {
    std::vector<double> want, want_lse, got, got_lse;
    const std::uint64_t before = hash_inputs();
    const Status reference = reference::attend(problem, tensors, reference::Precision::f64, want, want_lse);
    ASSERT_TRUE(reference.ok()) << reference.message();
    const Status kernel = attend_cpu(problem, tensors, got, got_lse);
    ASSERT_TRUE(kernel.ok()) << kernel.message();
    EXPECT_EQ(hash_inputs(), before) << "the call changed its inputs";
    const double rounding = problem.out_dtype == DType::bf16 ? 4e-3 : problem.out_dtype == DType::f16 ? 5e-4 : 0.0;
    const double bound = kernel_tolerance(problem.recipe);
    EXPECT_LE(relative_l2(got, want), bound + rounding);
    EXPECT_LE(max_difference(got_lse, want_lse), 10 * bound);
  }

  AttentionProblem problem;

 private:
  std::vector<std::int64_t> lengths_;
  unsigned seed_;
  bool shared_kv_;
  std::vector<std::byte> q_;
  std::vector<std::int64_t> cu_{0};
  std::vector<float> sinks_, slopes_, bias_;
  std::vector<std::uint8_t> keep_;

 public:
  PagedCache cache;
  AttentionTensors tensors;

 private:
  PagedCache make_cache() const {
    CacheConfig c;
    c.recipe = problem.recipe;
    c.batch = problem.batch;
    c.page_size = problem.page_size;
    c.num_pages = problem.batch * (problem.max_kv / problem.page_size + 2);
    c.q_heads = problem.q_heads;
    c.kv_heads = problem.kv_heads;
    c.head_dim = problem.head_dim;
    c.head_dim_v = problem.head_dim_v;
    c.shared_kv = shared_kv_;
    const auto mean = [this](bool wanted, std::int64_t heads, std::int64_t d, unsigned salt) {
      return wanted ? normal_from_table({1, 1, heads, d}, seed_ + salt).data : std::vector<float>();
    };
    c.k_mean = mean(c.recipe.centre == Centre::fixed, c.kv_heads, c.head_dim, 91);
    c.q_mean = mean(c.recipe.q_centre == QCentre::fixed, c.q_heads, c.head_dim, 92);
    c.v_mean = mean(c.recipe.v_mean == VMean::fixed, c.kv_heads, c.head_dim_v, 93);
    for (const bool is_k : {true, false}) {
      if (!is_k && shared_kv_) continue;
      const BlockFormat& f = is_k ? c.recipe.k : c.recipe.v;
      std::vector<float>& global = is_k ? c.k_global : c.v_global;
      // nvfp4 takes a calibrated scale and does without: by the seed.
      const bool wanted = f.rule == ScaleRule::fixed || (f.scale == ScaleType::e4m3 && seed_ % 2 == 1);
      for (std::int64_t h = 0; wanted && h < c.kv_heads; ++h) {
        global.push_back((is_k ? 0.02F : 0.03F) + 0.001F * static_cast<float>(h % 7));
      }
    }
    Result<PagedCache> made = PagedCache::create(c);
    if (!made.ok()) throw std::runtime_error(made.status().message());
    return std::move(made).value();
  }

  [[nodiscard]] std::int64_t rows_of(std::int64_t b) const {
    return problem.total_q > 0 ? std::max<std::int64_t>(1, problem.max_q - b) : problem.max_q;
  }

  void fill_cache() {
    const std::int64_t n = problem.batch;
    for (const bool past : {true, false}) {
      std::vector<std::int64_t> counts;
      for (std::int64_t b = 0; b < n; ++b) {
        const std::int64_t newest = std::min(rows_of(b), lengths_[b]);
        counts.push_back(past ? lengths_[b] - newest : newest);
      }
      const std::int64_t most = *std::max_element(counts.begin(), counts.end());
      const unsigned salt = past ? 1 : 11;
      const Tensor k =
          with_bias(normal_from_table({n, most, problem.kv_heads, problem.head_dim}, seed_ + salt), 0, 3.0F);
      const Tensor v = normal_from_table({n, most, problem.kv_heads, problem.head_dim_v}, seed_ + salt + 1);
      const Tensor q = normal_from_table({n, most, problem.q_heads, problem.head_dim}, seed_ + salt + 2);
      const TensorView q_view = q.view();
      const Status s = shared_kv_ ? cache.append(k.view(), &q_view, nullptr, counts.data())
                                  : cache.append(k.view(), v.view(), &q_view, nullptr, counts.data());
      if (!s.ok()) throw std::runtime_error(s.message());
      if (past && !cache.seal().ok()) throw std::runtime_error("seal failed");
    }
  }

  void fill_rows() {
    std::int64_t rows = problem.max_q;
    std::int64_t sequences = problem.batch;
    if (problem.total_q > 0) {
      for (std::int64_t b = 0; b < problem.batch; ++b) cu_.push_back(cu_.back() + rows_of(b));
      rows = cu_.back();
      sequences = 1;
      tensors.cu_seqlens_q = cu_.data();
    }
    const Tensor q = normal_from_table({sequences, rows, problem.q_heads, problem.head_dim}, seed_ + 31);
    const std::string name = problem.q_dtype == DType::f32 ? "f32" : problem.q_dtype == DType::bf16 ? "bf16" : "fp16";
    const auto n = static_cast<std::int64_t>(q.data.size());
    q_.resize(q.data.size() * dtype_bytes(problem.q_dtype));
    for (std::int64_t i = 0; i < n; ++i) {
      quantise_tokens(parse_format(name).value(), 1, 0, 1, &q.data[i], 1, 1.0F,
                      {q_.data() + i * static_cast<std::int64_t>(dtype_bytes(problem.q_dtype)), 0, nullptr, 0},
                      nullptr);
    }
    tensors.q = contiguous(static_cast<const void*>(q_.data()), problem.q_dtype, q.shape);
  }

  void fill_options() {
    for (std::int64_t h = 0; h < problem.q_heads; ++h) {
      sinks_.push_back(static_cast<float>(h % 5) - 1.0F);
      slopes_.push_back(std::exp2(-static_cast<float>(h % 8 + 1)));
    }
    if (problem.sinks) tensors.sinks = sinks_.data();
    if (problem.alibi) tensors.alibi_slopes = slopes_.data();
    if (problem.mask == MaskTensor::none) return;
    const std::int64_t keys = problem.max_kv;
    const std::array<std::int64_t, 4> shape{problem.batch, 1, problem.max_q, keys};
    std::mt19937 rng(seed_);
    for (std::int64_t i = 0; i < problem.batch * problem.max_q * keys; ++i) {
      const bool masked = rng() % 3 == 0 || i / keys % 7 == 6;  // every seventh row sees nothing
      keep_.push_back(masked ? 0 : 1);
      bias_.push_back(masked ? -std::numeric_limits<float>::infinity() : static_cast<float>(rng() % 100) / 50.0F);
    }
    const bool boolean = problem.mask == MaskTensor::boolean;
    const void* data = boolean ? static_cast<const void*>(keep_.data()) : bias_.data();
    tensors.mask = contiguous(data, boolean ? DType::u8 : DType::f32, shape);
  }

  [[nodiscard]] std::uint64_t hash_inputs() {
    const CacheView v = cache.view();
    std::uint64_t h = hash_bytes(q_.data(), q_.size());
    h ^= hash_bytes(cache.storage(), static_cast<std::size_t>(cache.storage_bytes())) * 3;
    h ^=
        hash_bytes(v.page_table, static_cast<std::size_t>(problem.batch * v.page_table_stride) * sizeof(std::int32_t)) *
        5;
    h ^= hash_bytes(v.lengths, static_cast<std::size_t>(problem.batch) * sizeof(std::int64_t)) * 7;
    h ^= hash_bytes(cu_.data(), cu_.size() * sizeof(std::int64_t)) * 9;
    h ^= hash_bytes(sinks_.data(), sinks_.size() * sizeof(float)) * 11;
    h ^= hash_bytes(slopes_.data(), slopes_.size() * sizeof(float)) * 13;
    h ^= hash_bytes(bias_.data(), bias_.size() * sizeof(float)) * 15;
    return h ^ hash_bytes(keep_.data(), keep_.size()) * 17;
  }
};

}  // namespace mpfa::test
