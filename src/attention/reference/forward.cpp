#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "attention/check.hpp"
#include "attention/logit.hpp"
#include "attention/query.hpp"
#include "attention/reference/keys.hpp"
#include "attention/reference/online.hpp"
#include "attention/reference/rotate.hpp"
#include "attention/sequences.hpp"
#include "mpfa/reference.hpp"

namespace mpfa::reference {
namespace {

template <class Real>
Real dot(const float* a, const float* b, std::int64_t n) {
  Real sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<Real>(a[i]) * static_cast<Real>(b[i]);
  return sum;
}

/// One (sequence, query head) of the call.
template <class Real>
class Head {
 public:
  Head(const AttentionProblem& p, const AttentionTensors& t, const KeyHead<Real>& keys, std::int64_t b, std::int64_t h)
      : p_(p), t_(t), keys_(keys), b_(b), h_(h), q_(prepare_query(p, t, b, h)) {}

  [[nodiscard]] std::int64_t rows() const { return q_.rows; }

  [[nodiscard]] Row<Real> attend(std::int64_t i) const {
    const KeyRange visible = visible_keys(p_, i, q_.rows, keys_.length);
    RowState<Real> packed(p_.head_dim_v);
    RowState<Real> wide(p_.head_dim_v);
    if (visible.begin < visible.end) add_keys(i, visible, packed, wide);

    Row<Real> row = merge(finish(packed), finish(wide));
    if (!row.empty()) restore_values(row.out);
    // Scores are true logits - shift (unless a softcap had to have it back already), and the sink is a true logit.
    const double shift = p_.softcap > 0.0F || row.empty() ? 0.0 : q_.shift[i];
    if (!row.empty()) row.lse += shift;
    if (p_.sinks) add_sink(static_cast<double>(t_.sinks[h_]), row);
    return row;
  }

 private:
  void add_keys(std::int64_t i, KeyRange visible, RowState<Real>& packed, RowState<Real>& wide) const {
    const Recipe& r = p_.recipe;
    const Rounding packed_rounding{r.p, r.p_scale, r.denominator};
    const Rounding wide_rounding{PMode::bf16, 1.0F, Denominator::exact};
    const KeyRange in_pages = packed_keys(p_, t_, b_, visible);
    const std::int64_t first = visible.begin / kKeyTile;
    const std::int64_t count = (visible.end - 1) / kKeyTile - first + 1;
    std::vector<Real> x_packed(kKeyTile);
    std::vector<Real> x_wide(kKeyTile);
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t tile = (r.order == KeyOrder::forward ? first + n : first + count - 1 - n) * kKeyTile;
      const std::int64_t end = std::min(tile + kKeyTile, keys_.length);
      std::fill(x_packed.begin(), x_packed.end(), kMasked<Real>);
      std::fill(x_wide.begin(), x_wide.end(), kMasked<Real>);
      for (std::int64_t j = std::max(tile, visible.begin); j < std::min(end, visible.end); ++j) {
        const bool from_pages = in_pages.begin <= j && j < in_pages.end;
        (from_pages ? x_packed : x_wide)[j - tile] = logit(i, j, from_pages);
      }
      add_tile(packed_rounding, x_packed.data(), end - tile, keys_.packed.v, tile, packed);
      add_tile(wide_rounding, x_wide.data(), end - tile, keys_.wide.v, tile, wide);
    }
  }

  /// Finished logit of (row i, key j) in the log2 domain, without the row's shift unless softcapped.
  [[nodiscard]] Real logit(std::int64_t i, std::int64_t j, bool from_pages) const {
    const std::int64_t d = p_.head_dim;
    Real s = 0;
    if (from_pages) {
      const float* k = keys_.packed.k.data() + j * d;
      s = dot<Real>(q_.quantised.data() + i * d, k, d) + mean_term(i, j, k);
    } else {
      s = dot<Real>(q_.wide.data() + i * d, keys_.wide.k.data() + j * d, d);
    }
    s *= static_cast<Real>(softmax_scale(p_));
    const std::int64_t position = i + keys_.length - q_.rows;
    s = finish_logit(p_, t_, s, static_cast<Real>(q_.shift[i]), b_, h_, i, position, j);
    return s * static_cast<Real>(kLog2E);
  }

  /// What centring Q took out of the score: a . K'[j].
  [[nodiscard]] Real mean_term(std::int64_t i, std::int64_t j, const float* k) const {
    const std::int64_t d = p_.head_dim;
    if (!q_.block_mean.empty()) return dot<Real>(q_.block_mean.data() + i / kQueryBlock * d, k, d);
    const CacheView& c = t_.cache;
    if (c.rank_one == nullptr) return 0;
    const std::int64_t group = p_.q_heads / p_.kv_heads;
    const std::int64_t page = c.page_table[b_ * c.page_table_stride + j / p_.page_size];
    return static_cast<Real>(c.rank_one_at(page, h_ / group, j % p_.page_size, h_ % group));
  }

  void restore_values(std::vector<Real>& out) const {
    if (p_.recipe.rotate == Rotate::qkv) unrotate(out.data(), p_.head_dim_v, v_rotation_block(p_, t_.cache));
    if (t_.cache.sequences == nullptr || t_.cache.sequences[b_].v_mean == nullptr) return;
    const float* mean = t_.cache.sequences[b_].v_mean + h_ / (p_.q_heads / p_.kv_heads) * p_.head_dim_v;
    for (std::size_t c = 0; c < out.size(); ++c) out[c] += static_cast<Real>(mean[c]);
  }

  const AttentionProblem& p_;
  const AttentionTensors& t_;
  const KeyHead<Real>& keys_;
  std::int64_t b_, h_;
  QueryHead q_;
};

template <class Real>
void run(const AttentionProblem& p, const AttentionTensors& t, std::vector<double>& out, std::vector<double>& lse) {
  const std::int64_t group = p.q_heads / p.kv_heads;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    if (query_rows(t, b).count == 0) continue;
    for (std::int64_t g = 0; g < p.kv_heads; ++g) {
      const KeyHead<Real> keys = load_keys<Real>(p, t.cache, b, g);
      for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
        const Head<Real> head(p, t, keys, b, h);
        for (std::int64_t i = 0; i < head.rows(); ++i) {
          const Row<Real> row = head.attend(i);
          const std::int64_t at = (query_rows(t, b).first + i) * p.q_heads + h;
          std::copy(row.out.begin(), row.out.end(), out.begin() + at * p.head_dim_v);
          lse[at] = row.lse;
        }
      }
    }
  }
}

}  // namespace

Status attend(const AttentionProblem& problem, const AttentionTensors& tensors, Precision precision,
              std::vector<double>& out, std::vector<double>& lse) {
  MPFA_RETURN_IF_ERROR(check_problem(problem));
  MPFA_RETURN_IF_ERROR(check_inputs(problem, tensors));
  try {
    const std::int64_t rows = tensors.q.shape[0] * tensors.q.shape[1] * problem.q_heads;
    out.assign(static_cast<std::size_t>(rows * problem.head_dim_v), 0.0);
    lse.assign(static_cast<std::size_t>(rows), -std::numeric_limits<double>::infinity());
    if (precision == Precision::f32) {
      run<float>(problem, tensors, out, lse);
    } else {
      run<double>(problem, tensors, out, lse);
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "reference attend: the expanded cache does not fit in memory; use fewer keys"};
  }
  return {};
}

}  // namespace mpfa::reference
