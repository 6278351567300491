#include "cache/sequence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cache/row_ops.hpp"
#include "threads/run_tasks.hpp"

namespace mpfa {
namespace {

const float* data_or_null(const std::vector<float>& v) {
  return v.empty() ? nullptr : v.data();
}

/// Mean per channel over finite values only, so that one bad token does not spoil the sequence; sums in float64, token
/// by token. load(t, head, x) gives the rows.
template <class TurnOf, class Load>
std::vector<float> finite_mean(const CacheConfig& config, std::int64_t heads, std::int64_t n, std::int64_t d,
                               const TurnOf& turn_of, const Load& load) {
  // Heads that adjoin in memory go together: one head alone would touch a memory page per row.
  const std::int64_t together = std::max<std::int64_t>(1, rows::kLongest / d);
  std::vector<float> mean(static_cast<std::size_t>(heads * d), 0.0F);
  const std::int64_t tasks = (heads + together - 1) / together;
  threads::run_tasks(config.executor, tasks, threads_for(config, heads * n * d), [&](std::int64_t task, int) {
    const std::int64_t begin = task * together, end = std::min(heads, begin + together);
    rows::Row row;
    std::array<double, rows::kLongest> sum{};
    std::array<std::int64_t, rows::kLongest> skipped{};
    for (std::int64_t t = 0; t < n; ++t) {
      const RopeRow turn = turn_of(t);
      for (std::int64_t h = begin; h < end; ++h) {
        load(t, h, turn, row.x);
        rows::add_finite(row.x, d, sum.data() + (h - begin) * d, skipped.data() + (h - begin) * d);
      }
    }
    for (std::int64_t c = 0; c < (end - begin) * d; ++c) {
      const std::int64_t count = n - skipped[c];
      if (count > 0) mean[begin * d + c] = static_cast<float>(sum[c] / static_cast<double>(count));
    }
  });
  return mean;
}

void load_row_of(const TensorView& x, std::int64_t row, std::int64_t t, std::int64_t head, float* out) {
  const std::int64_t offset = row * x.stride[0] + t * x.stride[1] + head * x.stride[2];
  if (t + 1 < x.shape[1] && x.stride[3] == 1) rows::prefetch(x, offset + x.stride[1], x.shape[3]);
  rows::load(x, offset, x.stride[3], x.shape[3], out);
}

/// The mean of a V that is part of K.
void share_mean(const CacheConfig& config, SequenceState& state) {
  state.v_mean.clear();
  for (std::int64_t h = 0; !state.k_mean.empty() && h < config.kv_heads; ++h) {
    const auto first = state.k_mean.begin() + h * config.head_dim;
    state.v_mean.insert(state.v_mean.end(), first, first + config.head_dim_v);
  }
}

// Fewer say little about later tokens: two give slopes of any size, 16 cost a tenth of the precision, 64 a hundredth.
constexpr double kLeastFittedTokens = 64;

/// Least squares over the values as they are stored.
void fit_v_residual(const CacheConfig& config, const NewTokens& tokens, SequenceState& state) {
  const std::int64_t n = tokens.n;
  const std::int64_t d = config.head_dim_v;
  state.v_alpha.assign(static_cast<std::size_t>(config.kv_heads * d), 1.0F);
  state.v_beta.assign(static_cast<std::size_t>(config.kv_heads * d), 0.0F);
  std::vector<float> given(static_cast<std::size_t>(n * d)), hat(given.size());
  for (std::int64_t h = 0; h < config.kv_heads; ++h) {
    for (std::int64_t t = 0; t < n; ++t) {
      rows::Row row;
      stored_value(config, state, tokens, t, h, row.x);
      std::copy_n(row.x, d, given.data() + t * d);
    }
    round_trip_tokens(config.recipe.v, d, n, given.data(), d, hat.data(), d, nullptr);
    for (std::int64_t c = 0; c < d; ++c) {
      double count = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
      for (std::int64_t t = 0; t < n; ++t) {
        const double a = hat[t * d + c];
        const double b = given[t * d + c];
        if (!std::isfinite(a) || !std::isfinite(b)) continue;
        count += 1, sx += a, sy += b, sxx += a * a, sxy += a * b;
      }
      const double spread = count * sxx - sx * sx;
      if (count < kLeastFittedTokens || !(spread > 1e-12 * count * sxx)) continue;  // too few, or a constant channel
      const double alpha = (count * sxy - sx * sy) / spread;
      state.v_alpha[h * d + c] = static_cast<float>(alpha);
      state.v_beta[h * d + c] = static_cast<float>((sy - alpha * sx) / count);
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

int threads_for(const CacheConfig& config, std::int64_t elements) {
  constexpr std::int64_t kElementsOfAThread = 1 << 15;  // tens of microseconds: less than waking a thread is worth
  if (elements < 2 * kElementsOfAThread) return 1;
  return static_cast<int>(
      std::min<std::int64_t>(threads::resolve_threads(config.threads), elements / kElementsOfAThread));
}

void load_key(const NewTokens& tokens, std::int64_t t, std::int64_t head, const RopeRow& turn, float* x) {
  load_row_of(tokens.k, tokens.row, t, head, x);
  turn.turn(x);
}

void load_value(const NewTokens& tokens, std::int64_t t, std::int64_t head, float* x) {
  load_row_of(tokens.v, tokens.row, t, head, x);
}

void centred_key(const CacheConfig& config, const SequenceState& means, const NewTokens& tokens, std::int64_t t,
                 std::int64_t head, const RopeRow& turn, float* x) {
  load_key(tokens, t, head, turn, x);
  if (!means.k_mean.empty()) rows::subtract(x, means.k_mean.data() + head * config.head_dim, config.head_dim);
}

void stored_value(const CacheConfig& config, const SequenceState& means, const NewTokens& tokens, std::int64_t t,
                  std::int64_t head, float* x) {
  load_value(tokens, t, head, x);
  if (!means.v_mean.empty()) rows::subtract(x, means.v_mean.data() + head * config.head_dim_v, config.head_dim_v);
  if (config.recipe.rotate == Rotate::qkv) rows::hadamard(x, config.head_dim_v);
}

bool has_v_mean(const CacheConfig& config) {
  const Recipe& r = config.recipe;
  return config.shared_kv ? r.centre != Centre::none : r.v_mean == VMean::mean || r.v_mean == VMean::fixed;
}

SequenceState fixed_means(const CacheConfig& config) {
  const Recipe& r = config.recipe;
  SequenceState state;
  if (r.centre == Centre::fixed) state.k_mean = config.k_mean;
  if (r.v_mean == VMean::fixed) state.v_mean = config.v_mean;
  if (config.shared_kv) share_mean(config, state);
  if (r.q_centre == QCentre::fixed) state.q_mean = config.q_mean;
  return state;
}

void measure(const CacheConfig& config, const NewTokens& tokens, const TensorView* q, SequenceState& state) {
  const Recipe& r = config.recipe;
  const auto token_turn = [&](std::int64_t t) { return rope_row(tokens, t); };
  const auto no_turn = [](std::int64_t) { return RopeRow(); };
  if (r.centre == Centre::mean) {
    state.k_mean = finite_mean(
        config, config.kv_heads, tokens.n, config.head_dim, token_turn,
        [&](std::int64_t t, std::int64_t h, const RopeRow& turn, float* x) { load_key(tokens, t, h, turn, x); });
  }
  if (config.shared_kv) share_mean(config, state);
  if (r.v_mean == VMean::mean) {
    state.v_mean =
        finite_mean(config, config.kv_heads, tokens.n, config.head_dim_v, no_turn,
                    [&](std::int64_t t, std::int64_t h, const RopeRow&, float* x) { load_value(tokens, t, h, x); });
  }
  if (r.q_centre == QCentre::mean) {
    state.q_mean = finite_mean(config, config.q_heads, tokens.n, config.head_dim, token_turn,
                               [&](std::int64_t t, std::int64_t h, const RopeRow& turn, float* x) {
                                 load_row_of(*q, tokens.row, t, h, x);
                                 turn.turn(x);
                               });
  }
  if (r.v_residual) fit_v_residual(config, tokens, state);
}

}  // namespace mpfa
