#include "attention/reference/operands.hpp"

#include <cmath>
#include <cstdint>

#include "attention/check.hpp"
#include "attention/reference/rotate.hpp"
#include "attention/sequences.hpp"
#include "cache/convert.hpp"
#include "cache/rank_one.hpp"

namespace mpfa::reference {
namespace {

/// Rows [first, first + n) of head h of x [.., heads, d] as float32.
std::vector<float> head_rows(const std::vector<double>& x, std::int64_t first, std::int64_t n, std::int64_t heads,
                             std::int64_t h, std::int64_t d) {
  std::vector<float> rows(static_cast<std::size_t>(n * d));
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t c = 0; c < d; ++c) rows[i * d + c] = static_cast<float>(x[((first + i) * heads + h) * d + c]);
  }
  return rows;
}

/// Per-channel mean over finite values, as a cache takes it at the first append.
std::vector<float> mean_of(const std::vector<float>& x, std::int64_t d) {
  std::vector<float> mean(static_cast<std::size_t>(d), 0.0F);
  for (std::int64_t c = 0; c < d; ++c) {
    double sum = 0.0;
    double count = 0.0;
    for (std::size_t i = c; i < x.size(); i += static_cast<std::size_t>(d)) {
      if (std::isfinite(x[i])) sum += x[i], count += 1.0;
    }
    if (count > 0.0) mean[c] = static_cast<float>(sum / count);
  }
  return mean;
}

void subtract(std::vector<float>& x, const std::vector<float>& mean) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] -= mean[i % mean.size()];
}

/// What V is centred by here; check_backward has refused the means of pages.
Centre v_centre(VMean v) {
  return v == VMean::mean ? Centre::mean : v == VMean::fixed ? Centre::fixed : Centre::none;
}

/// The mean of `centre`: of x, or row `head` of the calibrated [heads, d].
std::vector<float> choose_mean(Centre centre, const std::vector<float>& x, const float* calibrated, std::int64_t head,
                               std::int64_t d) {
  if (centre == Centre::mean) return mean_of(x, d);
  if (centre == Centre::fixed) return {calibrated + head * d, calibrated + (head + 1) * d};
  return std::vector<float>(static_cast<std::size_t>(d), 0.0F);
}

/// round_trip(rotate(x)); `unrotated` receives the same values in the original basis.
template <class Real>
std::vector<float> quantise(const BlockFormat& f, bool rotated, std::vector<float> x, std::int64_t d,
                            std::vector<Real>& unrotated) {
  const auto n = static_cast<std::int64_t>(x.size()) / d;
  if (rotated) hadamard_rows(x.data(), n, d, d);
  std::vector<float> codes(x.size());
  round_trip_tokens(f, d, n, x.data(), d, codes.data(), d, nullptr);
  unrotated.assign(codes.begin(), codes.end());
  for (std::int64_t i = 0; rotated && i < n; ++i) unrotate(unrotated.data() + i * d, d);
  return codes;
}

Status check_means(const AttentionProblem& p, const AttentionTensors& t) {
  const Recipe& r = p.recipe;
  const bool needs_k = r.centre == Centre::fixed;
  const bool needs_q = r.q_centre == QCentre::fixed;
  const bool needs_v = r.v_mean == VMean::fixed;
  for (std::int64_t b = 0; b < p.batch && (needs_k || needs_q || needs_v); ++b) {
    const SequenceView s = t.cache.sequences == nullptr ? SequenceView{} : t.cache.sequences[b];
    if ((needs_k && s.k_mean == nullptr) || (needs_q && s.q_mean == nullptr) || (needs_v && s.v_mean == nullptr)) {
      return invalid(
          "recipe {} takes calibrated means, sequence {} has none; pass them in cache.sequences or use =mean",
          recipe_text(r), b);
    }
  }
  return {};
}

}  // namespace

Status check_backward(const AttentionProblem& p, const AttentionTensors& t, const TensorView& d_out) {
  MPFA_RETURN_IF_ERROR(check_problem(p));
  if (p.recipe.v_residual) {
    return {StatusCode::unsupported,
            fmt::format("backward: recipe {} fits V by alpha and beta, which has no gradient rule; use v_residual=off",
                        recipe_text(p.recipe))};
  }
  if (p.recipe.v_mean == VMean::page) {
    return {StatusCode::unsupported,
            fmt::format("backward: recipe {} centres V by the pages of a cache, and there is none; use v_mean=mean",
                        recipe_text(p.recipe))};
  }
  MPFA_RETURN_IF_ERROR(check_means(p, t));
  return check_float_tensor("d_out", d_out, {t.q.shape[0], t.q.shape[1], p.q_heads, p.head_dim_v});
}

template <class Real>
KeyOperands<Real> key_operands(const AttentionProblem& p, const AttentionTensors& t, const Inputs& x, std::int64_t b,
                               std::int64_t g) {
  const Recipe& r = p.recipe;
  const SequenceView s = t.cache.sequences == nullptr ? SequenceView{} : t.cache.sequences[b];
  KeyOperands<Real> keys;
  keys.n = x.lengths[b];
  keys.k_given = head_rows(x.k, b * x.sk, keys.n, p.kv_heads, g, p.head_dim);
  keys.k_mean = choose_mean(r.centre, keys.k_given, s.k_mean, g, p.head_dim);
  subtract(keys.k_given, keys.k_mean);
  keys.k_codes = quantise(r.k, r.rotate != Rotate::none, keys.k_given, p.head_dim, keys.k);

  keys.v_given = head_rows(x.v, b * x.sk, keys.n, p.kv_heads, g, p.head_dim_v);
  keys.v_mean = choose_mean(v_centre(r.v_mean), keys.v_given, s.v_mean, g, p.head_dim_v);
  subtract(keys.v_given, keys.v_mean);
  quantise(r.v, r.rotate == Rotate::qkv, keys.v_given, p.head_dim_v, keys.v);
  return keys;
}

template <class Real>
QueryOperands<Real> query_operands(const AttentionProblem& p, const AttentionTensors& t, const Inputs& x,
                                   const KeyOperands<Real>& keys, std::int64_t b, std::int64_t h) {
  const Recipe& r = p.recipe;
  const std::int64_t d = p.head_dim;
  const auto [rows, first] = query_rows(t, b);
  QueryOperands<Real> q;
  const std::vector<float> given = head_rows(x.q, first, rows, p.q_heads, h, d);
  const float* calibrated = t.cache.sequences == nullptr ? nullptr : t.cache.sequences[b].q_mean;
  const Centre centre = r.q_centre == QCentre::mean    ? Centre::mean
                        : r.q_centre == QCentre::fixed ? Centre::fixed
                                                       : Centre::none;
  const std::vector<float> a = choose_mean(centre, given, calibrated, h, d);
  q.head = prepare_query_rows(p, given, centre == Centre::none ? nullptr : a.data(), keys.k_mean.data());

  q.q.assign(q.head.quantised.begin(), q.head.quantised.end());
  q.mean.assign(q.q.size(), Real{0});
  for (std::int64_t i = 0; i < rows; ++i) {
    Real* mean = q.mean.data() + i * d;
    for (std::int64_t c = 0; c < d; ++c) {
      if (r.q_centre == QCentre::block) mean[c] = static_cast<Real>(q.head.block_mean[i / kQueryBlock * d + c]);
    }
    if (r.rotate == Rotate::none) continue;
    unrotate(q.q.data() + i * d, d);
    unrotate(mean, d);
  }
  q.q_given = given;
  for (std::size_t i = 0; i < given.size(); ++i) {
    q.q_given[i] -= r.q_centre == QCentre::block ? static_cast<float>(q.mean[i]) : a[i % a.size()];
  }
  if (centre == Centre::none || r.rank_one == RankOne::off) return q;

  for (std::size_t i = 0; i < q.mean.size(); ++i) q.mean[i] = static_cast<Real>(a[i % a.size()]);
  for (std::int64_t j = 0; j < keys.n; ++j) {
    const float term = rank_one_term(a.data(), keys.k_given.data() + j * d, d);
    q.rank_one.push_back(r.rank_one == RankOne::bf16 ? bf16_to_float(float_to_bf16(term)) : term);
  }
  return q;
}

template KeyOperands<float> key_operands(const AttentionProblem&, const AttentionTensors&, const Inputs&, std::int64_t,
                                         std::int64_t);
template KeyOperands<double> key_operands(const AttentionProblem&, const AttentionTensors&, const Inputs&, std::int64_t,
                                          std::int64_t);
template QueryOperands<float> query_operands(const AttentionProblem&, const AttentionTensors&, const Inputs&,
                                             const KeyOperands<float>&, std::int64_t, std::int64_t);
template QueryOperands<double> query_operands(const AttentionProblem&, const AttentionTensors&, const Inputs&,
                                              const KeyOperands<double>&, std::int64_t, std::int64_t);

}  // namespace mpfa::reference
