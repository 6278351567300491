#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "attention/logit.hpp"
#include "attention/reference/backward_rules.hpp"
#include "attention/reference/inputs.hpp"
#include "attention/reference/online.hpp"
#include "attention/reference/operands.hpp"
#include "attention/sequences.hpp"
#include "mpfa/reference.hpp"

namespace mpfa::reference {
namespace {

/// Gradients of one (sequence, query head): dq [rows, d], dk [n, d], dv [n, d_v].
template <class Real>
struct HeadGradients {
  std::vector<Real> dq, dk, dv;
  Real dsink = 0;
};

/// One row's logits and how each follows its scaled product.
template <class Real>
struct RowLogits {
  std::vector<Real> x;      // [n] true logits, -inf masked
  std::vector<Real> slope;  // [n] d logit / d (scale * q . k): 1 without cap and softcap
};

template <class Real>
class HeadBackward {
 public:
  HeadBackward(const AttentionProblem& p, const AttentionTensors& t, const KeyOperands<Real>& keys,
               const QueryOperands<Real>& q, std::int64_t b, std::int64_t h)
      : p_(p), t_(t), keys_(keys), q_(q), b_(b), h_(h), values_(rule_values(p.recipe.backward, keys)) {}

  /// d_out [rows, d_v] of this head.
  [[nodiscard]] HeadGradients<Real> run(const std::vector<Real>& d_out) const {
    const std::int64_t rows = q_.head.rows;
    HeadGradients<Real> g;
    g.dq.assign(static_cast<std::size_t>(rows * p_.head_dim), Real{0});
    g.dk.assign(static_cast<std::size_t>(keys_.n * p_.head_dim), Real{0});
    g.dv.assign(static_cast<std::size_t>(keys_.n * p_.head_dim_v), Real{0});
    std::vector<Real> ds(static_cast<std::size_t>(rows * keys_.n), Real{0});
    for (std::int64_t i = 0; i < rows; ++i) {
      const RowLogits<Real> logits = row_logits(i);
      const float* sink = p_.sinks ? t_.sinks + h_ : nullptr;
      const Softmax<Real> s = softmax(logits.x, sink);
      if (s.empty) continue;  // exact zeros, whatever dO holds
      const auto dv = static_cast<std::ptrdiff_t>(p_.head_dim_v);
      const std::vector<Real> d_row =
          rule_d_out(p_.recipe.backward, std::vector<Real>(d_out.begin() + i * dv, d_out.begin() + (i + 1) * dv));
      add_row(i, logits, s, d_row, ds, g);
    }
    add_score_products(ds, g);
    return g;
  }

 private:
  [[nodiscard]] RowLogits<Real> row_logits(std::int64_t i) const {
    const std::int64_t d = p_.head_dim;
    RowLogits<Real> row;
    row.x.assign(static_cast<std::size_t>(keys_.n), kMasked<Real>);
    row.slope.assign(row.x.size(), Real{1});
    const Real shift = static_cast<Real>(q_.head.shift[i]);
    const KeyRange visible = visible_keys(p_, i, q_.head.rows, keys_.n);
    for (std::int64_t j = visible.begin; j < visible.end; ++j) {
      const float* k = keys_.k_codes.data() + j * d;
      Real s = q_.rank_one.empty() ? Real{0} : static_cast<Real>(q_.rank_one[j]);
      for (std::int64_t c = 0; c < d; ++c) {
        Real q = static_cast<Real>(q_.head.quantised[i * d + c]);
        if (!q_.head.block_mean.empty()) q += static_cast<Real>(q_.head.block_mean[i / kQueryBlock * d + c]);
        s += q * static_cast<Real>(k[c]);
      }
      s *= static_cast<Real>(softmax_scale(p_));
      row.x[j] = finish_logit(p_, t_, s, shift, b_, h_, i, i + keys_.n - q_.head.rows, j);
      if (p_.recipe.logit_cap > 0.0F && std::abs(s) > static_cast<Real>(p_.recipe.logit_cap)) row.slope[j] = 0;
      if (p_.softcap > 0.0F) {
        const Real y = std::tanh((s + shift) / static_cast<Real>(p_.softcap));
        row.slope[j] *= 1 - y * y;
      } else if (row.x[j] != kMasked<Real>) {
        row.x[j] += shift;
      }
    }
    return row;
  }

  /// D = rowsum(dO o O), with the output that the rule says.
  [[nodiscard]] Real row_delta(const RowLogits<Real>& logits, const Softmax<Real>& s, const std::vector<Real>& p_hat,
                               const std::vector<Real>& d_row) const {
    std::vector<Real> out(d_row.size(), Real{0});
    const BackwardRule rule = p_.recipe.backward;
    if (rule == BackwardRule::direct_p || rule == BackwardRule::attn_qat) {
      // attn_qat is defined by O' = P V with unrounded P; direct_p keeps no other V than its e4m3 one.
      const std::vector<Real>& p = rule == BackwardRule::direct_p ? p_hat : s.p;
      for (std::int64_t j = 0; j < keys_.n; ++j) {
        for (std::size_t c = 0; p[j] != 0 && c < out.size(); ++c) out[c] += p[j] * values_[j * out.size() + c];
      }
    } else {
      out = forward_output(logits, s);
    }
    Real delta = 0;
    for (std::size_t c = 0; c < out.size(); ++c) delta += out[c] * d_row[c];
    return delta;
  }

  /// The row as the forward computes it, P rounded per key tile.
  [[nodiscard]] std::vector<Real> forward_output(const RowLogits<Real>& logits, const Softmax<Real>& s) const {
    const Recipe& r = p_.recipe;
    RowState<Real> state(p_.head_dim_v);
    std::vector<Real> x = logits.x;
    for (Real& v : x) v *= static_cast<Real>(kLog2E);
    const std::int64_t tiles = (keys_.n + kKeyTile - 1) / kKeyTile;
    for (std::int64_t n = 0; n < tiles; ++n) {
      const std::int64_t tile = (r.order == KeyOrder::forward ? n : tiles - 1 - n) * kKeyTile;
      add_tile({r.p, r.p_scale, r.denominator}, x.data() + tile, std::min(kKeyTile, keys_.n - tile), keys_.v, tile,
               state);
    }
    std::vector<Real> out = finish(state).out;
    for (std::size_t c = 0; c < out.size(); ++c) {
      out[c] = (out[c] + static_cast<Real>(keys_.v_mean[c])) * (1 - s.p_sink);
    }
    return out;
  }

  void add_row(std::int64_t i, const RowLogits<Real>& logits, const Softmax<Real>& s, const std::vector<Real>& d_row,
               std::vector<Real>& ds, HeadGradients<Real>& g) const {
    const auto d = static_cast<std::int64_t>(d_row.size());
    const std::vector<Real> p_hat = rule_probabilities(p_.recipe, s.p, logits.x, s.lse);
    const Real delta = row_delta(logits, s, p_hat, d_row);
    for (std::int64_t j = 0; j < keys_.n; ++j) {
      if (logits.x[j] == kMasked<Real>) continue;
      Real dp = 0;
      for (std::int64_t c = 0; c < d; ++c) {
        dp += d_row[c] * values_[j * d + c];
        g.dv[j * d + c] += p_hat[j] * d_row[c];
      }
      ds[i * keys_.n + j] = s.p[j] * (dp - delta) * logits.slope[j];
    }
    g.dsink -= s.p_sink * delta;
  }

  /// dQ = scale dS K and dK = scale dS^T Q. The means are constants and join unrounded.
  void add_score_products(const std::vector<Real>& ds, HeadGradients<Real>& g) const {
    const std::int64_t d = p_.head_dim;
    const Real scale = static_cast<Real>(softmax_scale(p_));
    const ScoreProducts<Real> s = rule_score_products(p_.recipe.backward, ds, keys_, q_, d);
    for (std::int64_t i = 0; i < q_.head.rows; ++i) {
      for (std::int64_t j = 0; j < keys_.n; ++j) {
        const std::int64_t at = i * keys_.n + j;
        if (ds[at] == 0) continue;
        for (std::int64_t c = 0; c < d; ++c) {
          g.dq[i * d + c] += scale * (s.ds_k[at] * s.k[j * d + c] + ds[at] * static_cast<Real>(keys_.k_mean[c]));
          g.dk[j * d + c] += scale * (s.ds_q[at] * s.q[i * d + c] + ds[at] * q_.mean[i * d + c]);
        }
      }
    }
  }

  const AttentionProblem& p_;
  const AttentionTensors& t_;
  const KeyOperands<Real>& keys_;
  const QueryOperands<Real>& q_;
  std::int64_t b_, h_;
  std::vector<Real> values_;  // V as dO V^T reads it
};

/// to[(first + i) of [.., heads, d], head h] += from [n, d].
template <class Real>
void add_rows(const std::vector<Real>& from, std::int64_t first, std::int64_t heads, std::int64_t h, std::int64_t d,
              std::vector<double>& to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / d;
    to[((first + row) * heads + h) * d + static_cast<std::int64_t>(i) % d] += static_cast<double>(from[i]);
  }
}

template <class Real>
void run(const AttentionProblem& p, const AttentionTensors& t, const Inputs& x, const std::vector<double>& d_out,
         Gradients& g) {
  const std::int64_t group = p.q_heads / p.kv_heads;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const auto [rows, first] = query_rows(t, b);
    for (std::int64_t kv = 0; kv < p.kv_heads && rows > 0; ++kv) {
      const KeyOperands<Real> keys = key_operands<Real>(p, t, x, b, kv);
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const QueryOperands<Real> q = query_operands(p, t, x, keys, b, h);
        std::vector<Real> d_head(static_cast<std::size_t>(rows * p.head_dim_v));
        for (std::size_t i = 0; i < d_head.size(); ++i) {
          const std::int64_t row = first + static_cast<std::int64_t>(i) / p.head_dim_v;
          d_head[i] = static_cast<Real>(d_out[(row * p.q_heads + h) * p.head_dim_v + i % p.head_dim_v]);
        }
        const HeadGradients<Real> head = HeadBackward<Real>(p, t, keys, q, b, h).run(d_head);
        add_rows(head.dq, first, p.q_heads, h, p.head_dim, g.dq);
        add_rows(head.dk, b * x.sk, p.kv_heads, kv, p.head_dim, g.dk);
        add_rows(head.dv, b * x.sk, p.kv_heads, kv, p.head_dim_v, g.dv);
        g.dsinks[h] += static_cast<double>(head.dsink);
      }
    }
  }
}

}  // namespace

Status backward(const AttentionProblem& problem, const TensorView& q, const TensorView& k, const TensorView& v,
                const TensorView& d_out, const AttentionTensors& extras, Precision precision, Gradients& gradients) {
  AttentionTensors t = extras;
  t.q = q;
  try {
    Inputs x;
    MPFA_RETURN_IF_ERROR(load_inputs(problem, t, k, v, x));
    MPFA_RETURN_IF_ERROR(check_backward(problem, t, d_out));
    gradients.dq.assign(x.q.size(), 0.0);
    gradients.dk.assign(x.k.size(), 0.0);
    gradients.dv.assign(x.v.size(), 0.0);
    gradients.dsinks.assign(static_cast<std::size_t>(problem.q_heads), 0.0);
    if (precision == Precision::f32) {
      run<float>(problem, t, x, to_double(d_out), gradients);
    } else {
      run<double>(problem, t, x, to_double(d_out), gradients);
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "backward: [rows, keys] matrices do not fit in memory; use fewer keys"};
  }
  return {};
}

}  // namespace mpfa::reference
