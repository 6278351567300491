#include "cache/sequence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cache/convert.hpp"
#include "cache/hadamard.hpp"

namespace mpfa {
namespace {

const float* data_or_null(const std::vector<float>& v) {
  return v.empty() ? nullptr : v.data();
}

/// Mean per channel over finite values only, so that one bad token does not spoil the sequence. x [heads, n, d].
std::vector<float> finite_mean(const float* x, std::int64_t heads, std::int64_t n, std::int64_t d) {
  std::vector<float> mean(static_cast<std::size_t>(heads * d), 0.0F);
  std::vector<double> sum(static_cast<std::size_t>(d));
  std::vector<std::int64_t> count(static_cast<std::size_t>(d));
  for (std::int64_t h = 0; h < heads; ++h) {
    std::fill(sum.begin(), sum.end(), 0.0);
    std::fill(count.begin(), count.end(), 0);
    for (std::int64_t t = 0; t < n; ++t) {
      const float* row = x + (h * n + t) * d;
      for (std::int64_t c = 0; c < d; ++c) {
        if (!std::isfinite(row[c])) continue;
        sum[c] += row[c];
        ++count[c];
      }
    }
    for (std::int64_t c = 0; c < d; ++c) {
      if (count[c] > 0) mean[h * d + c] = static_cast<float>(sum[c] / static_cast<double>(count[c]));
    }
  }
  return mean;
}

/// Rows of one batch row of x [batch, s, heads, d], head-major: [heads, n, d].
std::vector<float> head_major(const TensorView& x, std::int64_t row, std::int64_t n) {
  const std::int64_t heads = x.shape[2];
  const std::int64_t d = x.shape[3];
  std::vector<float> out(static_cast<std::size_t>(heads * n * d));
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t t = 0; t < n; ++t) {
      load_row(x.data, x.dtype, row * x.stride[0] + t * x.stride[1] + h * x.stride[2], x.stride[3], d,
               out.data() + (h * n + t) * d);
    }
  }
  return out;
}

void subtract(std::vector<float>& x, const std::vector<float>& mean, std::int64_t heads, std::int64_t n,
              std::int64_t d) {
  if (mean.empty()) return;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t t = 0; t < n; ++t) {
      for (std::int64_t c = 0; c < d; ++c) x[(h * n + t) * d + c] -= mean[h * d + c];
    }
  }
}

}  // namespace

SequenceView Sequence::view(std::int64_t sink) const {
  SequenceView s;
  s.k_mean = data_or_null(state.k_mean);
  s.q_mean = data_or_null(state.q_mean);
  s.v_mean = data_or_null(state.v_mean);
  s.v_alpha = data_or_null(state.v_alpha);
  s.v_beta = data_or_null(state.v_beta);
  s.sink = std::min(sink, length);
  s.sink_k = sink_k.data();
  s.sink_v = sink_v.data();
  s.wide_begin = wide_begin;
  s.wide_k = wide_k.data();
  s.wide_v = wide_v.data();
  s.packed_end = packed_end;
  return s;
}

std::int64_t Sequence::wide_bytes() const {
  const std::size_t wide = sink_k.size() + sink_v.size() + wide_k.size() + wide_v.size();
  const std::size_t means =
      state.k_mean.size() + state.q_mean.size() + state.v_mean.size() + state.v_alpha.size() + state.v_beta.size();
  return static_cast<std::int64_t>(wide * 2 + means * 4);
}

Status check_tokens(const char* call, const char* name, const TensorView& x, std::int64_t n, std::int64_t s,
                    std::int64_t heads, std::int64_t d) {
  if (x.shape[0] != n || x.shape[1] != s || x.shape[2] != heads || x.shape[3] != d) {
    return {StatusCode::invalid_argument,
            fmt::format("{}: {} has shape [{}, {}, {}, {}]; [{}, {}, {}, {}] is needed ([sequences, tokens, heads, "
                        "head dim])",
                        call, name, x.shape[0], x.shape[1], x.shape[2], x.shape[3], n, s, heads, d)};
  }
  if (x.dtype != DType::f32 && x.dtype != DType::bf16 && x.dtype != DType::f16) {
    return {StatusCode::invalid_argument,
            fmt::format("{}: {} must be float32, bfloat16 or float16; convert it before the call", call, name)};
  }
  // Sums over all sequences stay inside 64 bits.
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 38;
  if (s < 0 || s > kMostTokens) {
    return {StatusCode::invalid_argument,
            fmt::format("{}: {} has {} tokens for each sequence; it must be in [0, {}]", call, name, s, kMostTokens)};
  }
  if (x.data == nullptr && n > 0 && s > 0) {
    return {StatusCode::invalid_argument, fmt::format("{}: {} is a null pointer", call, name)};
  }
  return {};
}

NewTokens load_tokens(const TensorView& k, const TensorView* v, std::int64_t row, std::int64_t n) {
  NewTokens t;
  t.n = n;
  t.k = head_major(k, row, n);
  if (v != nullptr) t.v = head_major(*v, row, n);
  return t;
}

bool has_v_mean(const CacheConfig& config) {
  const Recipe& r = config.recipe;
  return config.shared_kv ? r.centre != Centre::none : r.v_mean == VMean::mean || r.v_mean == VMean::fixed;
}

void set_means(const CacheConfig& config, const NewTokens& tokens, const TensorView* q, std::int64_t row,
               SequenceState& state) {
  const Recipe& r = config.recipe;
  if (r.centre == Centre::fixed) state.k_mean = config.k_mean;
  if (r.centre == Centre::mean) {
    state.k_mean = finite_mean(tokens.k.data(), config.kv_heads, tokens.n, config.head_dim);
  }
  if (config.shared_kv) {
    for (std::int64_t h = 0; has_v_mean(config) && h < config.kv_heads; ++h) {
      const auto first = state.k_mean.begin() + h * config.head_dim;
      state.v_mean.insert(state.v_mean.end(), first, first + config.head_dim_v);
    }
  }
  if (r.v_mean == VMean::fixed) state.v_mean = config.v_mean;
  if (r.v_mean == VMean::mean) {
    state.v_mean = finite_mean(tokens.v.data(), config.kv_heads, tokens.n, config.head_dim_v);
  }
  if (r.q_centre == QCentre::fixed) state.q_mean = config.q_mean;
  if (r.q_centre == QCentre::mean) {
    const std::vector<float> rows = head_major(*q, row, tokens.n);
    state.q_mean = finite_mean(rows.data(), config.q_heads, tokens.n, config.head_dim);
  }
}

void transform_tokens(const CacheConfig& config, const SequenceState& state, NewTokens& tokens) {
  const Recipe& r = config.recipe;
  const std::int64_t n = tokens.n;
  const std::int64_t d = config.head_dim;
  subtract(tokens.k, state.k_mean, config.kv_heads, n, d);
  if (!config.shared_kv) subtract(tokens.v, state.v_mean, config.kv_heads, n, config.head_dim_v);
  if (r.rank_one != RankOne::off) {
    // From the unquantised K': from the codes it would put back the error that centring removed.
    const std::int64_t group = config.q_heads / config.kv_heads;
    tokens.rank_one.resize(static_cast<std::size_t>(config.q_heads * n));
    for (std::int64_t h = 0; h < config.kv_heads; ++h) {
      for (std::int64_t t = 0; t < n; ++t) {
        const float* row = tokens.k.data() + (h * n + t) * d;
        for (std::int64_t m = 0; m < group; ++m) {
          const float* a = state.q_mean.data() + (h * group + m) * d;
          double sum = 0.0;
          for (std::int64_t c = 0; c < d; ++c) sum += static_cast<double>(a[c]) * row[c];
          tokens.rank_one[(h * n + t) * group + m] = static_cast<float>(sum);
        }
      }
    }
  }
  if (r.rotate != Rotate::none) hadamard_rows(tokens.k.data(), config.kv_heads * n, d, d);
  if (r.rotate == Rotate::qkv && !config.shared_kv) {
    hadamard_rows(tokens.v.data(), config.kv_heads * n, config.head_dim_v, config.head_dim_v);
  }
}

void fit_v_residual(const CacheConfig& config, const NewTokens& tokens, SequenceState& state) {
  const std::int64_t n = tokens.n;
  const std::int64_t d = config.head_dim_v;
  state.v_alpha.assign(static_cast<std::size_t>(config.kv_heads * d), 1.0F);
  state.v_beta.assign(static_cast<std::size_t>(config.kv_heads * d), 0.0F);
  std::vector<float> hat(static_cast<std::size_t>(n * d));
  for (std::int64_t h = 0; h < config.kv_heads; ++h) {
    const float* x = tokens.v.data() + h * n * d;
    round_trip_tokens(config.recipe.v, d, n, x, d, hat.data(), d, nullptr);
    for (std::int64_t c = 0; c < d; ++c) {
      double count = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
      for (std::int64_t t = 0; t < n; ++t) {
        const double a = hat[t * d + c];
        const double b = x[t * d + c];
        if (!std::isfinite(a) || !std::isfinite(b)) continue;
        count += 1, sx += a, sy += b, sxx += a * a, sxy += a * b;
      }
      const double spread = count * sxx - sx * sx;
      if (count < 2 || !(spread > 1e-12 * count * sxx)) continue;  // a constant channel: nothing to fit
      const double alpha = (count * sxy - sx * sy) / spread;
      state.v_alpha[h * d + c] = static_cast<float>(alpha);
      state.v_beta[h * d + c] = static_cast<float>((sy - alpha * sx) / count);
    }
  }
}

}  // namespace mpfa
