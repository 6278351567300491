#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "attention/logit.hpp"
#include "attention/reference/inputs.hpp"
#include "attention/sequences.hpp"
#include "mpfa/reference.hpp"

namespace mpfa::reference {
namespace {

/// Row i of (sequence b, head h): true logits over the sequence's keys, -inf where masked.
std::vector<double> row_logits(const AttentionProblem& p, const Inputs& x, const AttentionTensors& t, QueryRows rows,
                               std::int64_t b, std::int64_t h, std::int64_t i) {
  const std::int64_t n = x.lengths[b];
  const std::int64_t d = p.head_dim;
  const double scale = softmax_scale(p);
  const double* q = x.q.data() + ((rows.first + i) * p.q_heads + h) * d;
  std::vector<double> logits(static_cast<std::size_t>(n), -std::numeric_limits<double>::infinity());
  const KeyRange keys = visible_keys(p, i, rows.count, n);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const double* k = x.k.data() + ((b * x.sk + j) * p.kv_heads + h / (p.q_heads / p.kv_heads)) * d;
    double dot = 0.0;
    for (std::int64_t c = 0; c < d; ++c) dot += q[c] * k[c];
    logits[j] = finish_logit(p, t, scale * dot, 0.0, b, h, i, i + n - rows.count, j);
  }
  return logits;
}

}  // namespace

Status exact(const AttentionProblem& problem, const TensorView& q, const TensorView& k, const TensorView& v,
             const AttentionTensors& extras, std::vector<double>& out, std::vector<double>& lse) {
  const AttentionProblem p = without_recipe(problem);
  AttentionTensors t = extras;
  t.q = q;
  try {
    Inputs x;
    MPFA_RETURN_IF_ERROR(load_inputs(p, t, k, v, x));
    const std::int64_t d = p.head_dim_v;
    const std::int64_t all_rows = q.shape[0] * q.shape[1] * p.q_heads;
    out.assign(static_cast<std::size_t>(all_rows * d), 0.0);
    lse.assign(static_cast<std::size_t>(all_rows), 0.0);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const QueryRows rows = query_rows(t, b);
      for (std::int64_t i = 0; i < rows.count; ++i) {
        for (std::int64_t h = 0; h < p.q_heads; ++h) {
          const Softmax<double> s = softmax(row_logits(p, x, t, rows, b, h, i), p.sinks ? t.sinks + h : nullptr);
          const std::int64_t at = (rows.first + i) * p.q_heads + h;
          lse[at] = s.lse;
          for (std::size_t j = 0; j < s.p.size(); ++j) {
            if (s.p[j] == 0.0) continue;  // a masked value may be anything, even NaN
            const std::int64_t key = b * x.sk + static_cast<std::int64_t>(j);
            const double* value = x.v.data() + (key * p.kv_heads + h / (p.q_heads / p.kv_heads)) * d;
            for (std::int64_t c = 0; c < d; ++c) out[at * d + c] += s.p[j] * value[c];
          }
        }
      }
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "exact attention: float64 copies do not fit in memory; use fewer keys"};
  }
  return {};
}

}  // namespace mpfa::reference
