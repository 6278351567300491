#include "attention/reference/inputs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/check.hpp"
#include "attention/names.hpp"
#include "attention/sequences.hpp"
#include "cache/convert.hpp"

namespace mpfa::reference {
namespace {

bool is_float(DType t) {
  return t == DType::f32 || t == DType::f64 || t == DType::bf16 || t == DType::f16;
}

}  // namespace

Status check_float_tensor(const char* name, const TensorView& x, const std::array<std::int64_t, 4>& shape) {
  if (!is_float(x.dtype)) return invalid("{} is {}; it must be f32, f64, bf16 or f16", name, dtype_name(x.dtype));
  if (x.shape != shape || shape[1] < 0) {
    return invalid("{} has shape [{}, {}, {}, {}]; [{}, {}, {}, {}] is needed", name, x.shape[0], x.shape[1],
                   x.shape[2], x.shape[3], shape[0], std::max<std::int64_t>(shape[1], 0), shape[2], shape[3]);
  }
  if (x.data == nullptr && shape[0] * shape[1] > 0) return invalid("{}.data is null; pass its elements", name);
  return {};
}

std::vector<double> to_double(const TensorView& x) {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(x.shape[0] * x.shape[1] * x.shape[2] * x.shape[3]));
  std::vector<float> row(static_cast<std::size_t>(x.shape[3]));
  for (std::int64_t i = 0; i < x.shape[0]; ++i) {
    for (std::int64_t j = 0; j < x.shape[1]; ++j) {
      for (std::int64_t h = 0; h < x.shape[2]; ++h) {
        const std::int64_t at = i * x.stride[0] + j * x.stride[1] + h * x.stride[2];
        if (x.dtype == DType::f64) {
          const double* p = static_cast<const double*>(x.data) + at;
          for (std::int64_t c = 0; c < x.shape[3]; ++c) out.push_back(p[c * x.stride[3]]);
        } else {
          load_row(x.data, x.dtype, at, x.stride[3], x.shape[3], row.data());
          out.insert(out.end(), row.begin(), row.end());
        }
      }
    }
  }
  return out;
}

AttentionProblem without_recipe(AttentionProblem problem) {
  problem.recipe = Recipe{};
  return problem;
}

Status load_inputs(const AttentionProblem& p, const AttentionTensors& t, const TensorView& k, const TensorView& v,
                   Inputs& inputs) {
  MPFA_RETURN_IF_ERROR(check_problem(without_recipe(p)));
  const bool ragged = t.cu_seqlens_q != nullptr;
  MPFA_RETURN_IF_ERROR(check_float_tensor("q", t.q, {ragged ? 1 : p.batch, t.q.shape[1], p.q_heads, p.head_dim}));
  MPFA_RETURN_IF_ERROR(check_float_tensor("k", k, {p.batch, k.shape[1], p.kv_heads, p.head_dim}));
  MPFA_RETURN_IF_ERROR(check_float_tensor("v", v, {p.batch, k.shape[1], p.kv_heads, p.head_dim_v}));
  if (ragged) MPFA_RETURN_IF_ERROR(check_cu_seqlens(p, t.cu_seqlens_q, t.q.shape[1]));
  inputs.sk = k.shape[1];
  inputs.lengths.assign(static_cast<std::size_t>(p.batch), inputs.sk);
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    if (t.cache.lengths != nullptr) inputs.lengths[b] = t.cache.lengths[b];
    if (inputs.lengths[b] < 0 || inputs.lengths[b] > inputs.sk) {
      return out_of_range("lengths[{}] is {}; k holds {} tokens per sequence", b, inputs.lengths[b], inputs.sk);
    }
    rows = std::max(rows, query_rows(t, b).count);
    keys = std::max(keys, inputs.lengths[b]);
  }
  MPFA_RETURN_IF_ERROR(check_extras(p, t, rows, keys));
  inputs.q = to_double(t.q);
  inputs.k = to_double(k);
  inputs.v = to_double(v);
  return {};
}

template <class Real>
Softmax<Real> softmax(const std::vector<Real>& logits, const float* sink) {
  constexpr Real kMasked = -std::numeric_limits<Real>::infinity();
  Softmax<Real> s{std::vector<Real>(logits.size(), Real{0}), kMasked};
  Real top = sink == nullptr ? kMasked : static_cast<Real>(*sink);
  for (const Real x : logits) {
    top = std::max(top, x);
    s.empty = s.empty && x == kMasked;
  }
  if (s.empty) {
    s.lse = top;
    s.p_sink = sink == nullptr ? 0 : 1;
    return s;
  }
  Real sum = sink == nullptr ? Real{0} : std::exp(static_cast<Real>(*sink) - top);
  for (const Real x : logits) {
    if (x != kMasked) sum += std::exp(x - top);
  }
  s.lse = top + std::log(sum);
  for (std::size_t j = 0; j < logits.size(); ++j) {
    if (logits[j] != kMasked) s.p[j] = std::exp(logits[j] - s.lse);
  }
  if (sink != nullptr) s.p_sink = std::exp(static_cast<Real>(*sink) - s.lse);
  return s;
}

template Softmax<float> softmax(const std::vector<float>&, const float*);
template Softmax<double> softmax(const std::vector<double>&, const float*);

}  // namespace mpfa::reference
