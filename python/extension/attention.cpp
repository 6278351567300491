// Attention over plain tensors, supports() and merging of partial results.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/names.hpp"
#include "cache/convert.hpp"
#include "extension/bindings.hpp"
#include "extension/problem.hpp"
#include "extension/runner.hpp"

namespace mpfa::python {

namespace {

constexpr std::int64_t kPageSize = 64;

TensorView rows_of(const Array& x, std::int64_t first, std::int64_t count) {
  TensorView view = x.view();
  view.data = static_cast<const char*>(x.data) + first * x.stride[1] * static_cast<std::int64_t>(dtype_bytes(x.dtype));
  view.shape[1] = count;
  return view;
}

/// Offsets into k: given ones checked, or those of equally long sequences.
std::vector<std::int64_t> key_offsets(nb::handle cu_seqlens_k, const Array& k) {
  auto given = import_integers(cu_seqlens_k, "cu_seqlens_k");
  if (!given) return {};
  if (given->size() < 2 || given->front() != 0 || given->back() != k.shape[1] ||
      !std::is_sorted(given->begin(), given->end())) {
    fail(
        "cu_seqlens_k has {} entries from {} to {}; batch + 1 offsets that start at 0, never fall and end at the {} "
        "rows of k are needed",
        given->size(), given->empty() ? 0 : given->front(), given->empty() ? 0 : given->back(), k.shape[1]);
  }
  return *std::move(given);
}

/// Mean over the rows of each sequence of q, [batch, q_heads, head_dim]; non-finite values are left out, as append
/// does.
std::vector<float> query_means(const Call& call, std::int64_t q_heads, std::int64_t head_dim) {
  std::vector<float> means(static_cast<std::size_t>(call.key.batch * q_heads * head_dim), 0.0F);
  std::vector<float> row(static_cast<std::size_t>(head_dim));
  const bool ragged = call.cu_seqlens_q.has_value();
  const auto& stride = call.q.stride;
  for (std::int64_t b = 0; b < call.key.batch; ++b) {
    const std::int64_t first = ragged ? (*call.cu_seqlens_q)[b] : 0;
    const std::int64_t n = ragged ? (*call.cu_seqlens_q)[b + 1] - first : call.q.shape[1];
    for (std::int64_t h = 0; h < q_heads; ++h) {
      std::vector<double> sum(row.size(), 0.0), count(row.size(), 0.0);
      for (std::int64_t i = first; i < first + n; ++i) {
        load_row(call.q.data, call.q.dtype, (ragged ? 0 : b * stride[0]) + i * stride[1] + h * stride[2], stride[3],
                 head_dim, row.data());
        for (std::int64_t c = 0; c < head_dim; ++c) {
          if (!std::isfinite(row[c])) continue;
          sum[c] += row[c];
          count[c] += 1.0;
        }
      }
      float* mean = means.data() + (b * q_heads + h) * head_dim;
      for (std::int64_t c = 0; c < head_dim; ++c)
        mean[c] = count[c] > 0.0 ? static_cast<float>(sum[c] / count[c]) : 0.0F;
    }
  }
  return means;
}

/// Quantises k and v as a cache would, then attends: one function for every recipe.
void attend_tensors(const std::string& recipe, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                    const nb::tuple& call_options, nb::handle cu_seqlens_k, nb::object k_mean, nb::object q_mean,
                    nb::object v_mean, nb::object k_scale, nb::object v_scale) {
  const CallOptions options(call_options);
  const bool ragged_k = !cu_seqlens_k.is_none();
  const Array k_array = import_rows(k, "k", ragged_k);
  const Array v_array = import_rows(v, "v", ragged_k);
  const std::vector<std::int64_t> offsets = key_offsets(cu_seqlens_k, k_array);
  const std::int64_t batch = ragged_k ? static_cast<std::int64_t>(offsets.size()) - 1 : k_array.shape[0];
  const auto q_shape = import_rows(q, "q", !options.cu_seqlens_q.is_none()).shape;
  const std::int64_t q_heads = q_shape[2];
  const std::int64_t kv_heads = k_array.shape[2];
  const std::int64_t head_dim = k_array.shape[3];
  if (batch < 1) fail("attend: the batch is empty; at least one sequence is needed");
  if (v_array.shape[1] != k_array.shape[1]) {
    fail("attend: v has {} rows, k has {}; they must be equal", v_array.shape[1], k_array.shape[1]);
  }

  CacheConfig config = make_config(recipe, batch, kPageSize, q_heads, kv_heads, head_dim, v_array.shape[3],
                                   {k_mean, q_mean, v_mean, k_scale, v_scale});
  config.page_size = std::lcm(kPageSize, commit_unit(config.recipe, kPageSize));
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t n = ragged_k ? offsets[b + 1] - offsets[b] : k_array.shape[1];
    config.num_pages += (n + config.page_size - 1) / config.page_size;
  }
  Call call;
  import_call(q, out, lse, options, q_heads, call);
  if (call.key.batch != batch) {
    fail("attend: q has {} sequences, k has {}; they must be equal", call.key.batch, batch);
  }
  if (call.q.shape[3] != head_dim) fail("attend: q has head_dim {}, k has {}", call.q.shape[3], head_dim);

  nb::gil_scoped_release released;
  AttentionProblem problem;
  problem.recipe = config.recipe;
  problem.q_heads = q_heads;
  problem.kv_heads = kv_heads;
  problem.head_dim = head_dim;
  problem.head_dim_v = config.head_dim_v;
  problem.page_size = config.page_size;
  const bool wants_q_mean = config.recipe.q_centre == QCentre::mean;
  PagedCache cache = take(PagedCache::create(std::move(config)));
  // append() takes a mean over as many rows as k has; one mean row repeated by a zero stride serves any number.
  const std::vector<float> means = wants_q_mean ? query_means(call, q_heads, head_dim) : std::vector<float>{};
  for (std::int32_t b = 0; b < batch; ++b) {
    TensorView k_view = ragged_k ? rows_of(k_array, offsets[b], offsets[b + 1] - offsets[b]) : k_array.view();
    TensorView v_view = ragged_k ? rows_of(v_array, offsets[b], offsets[b + 1] - offsets[b]) : v_array.view();
    for (TensorView* x : {&k_view, &v_view}) {
      const std::int64_t skip = ragged_k ? 0 : b * x->stride[0] * static_cast<std::int64_t>(dtype_bytes(x->dtype));
      x->data = static_cast<const char*>(x->data) + skip;
      x->shape[0] = 1;
    }
    TensorView q_view{means.data() + (wants_q_mean ? b * q_heads * head_dim : 0),
                      DType::f32,
                      {1, k_view.shape[1], q_heads, head_dim},
                      {0, 0, head_dim, 1}};
    check(cache.append(k_view, v_view, wants_q_mean ? &q_view : nullptr, &b, nullptr));
  }
  check(cache.seal());
  call.tensors.cache = cache.view();
  call.key.max_kv = *std::max_element(cache.lengths().begin(), cache.lengths().end());
  check(Runner(std::move(problem)).run(call.key, call.tensors));
}

/// Partial results o [b, rows, heads, d] with lse [b, heads, rows] over disjoint keys, or both without the batch.
void merge(nb::handle o_a, nb::handle lse_a, nb::handle o_b, nb::handle lse_b, nb::handle o, nb::handle lse) {
  const Array out = import_array(o, "o", true);
  const Array out_lse = import_array(lse, "lse", true);
  const bool ragged = out.ndim == 3;
  const std::int64_t b = ragged ? 1 : out.shape[0], s = out.shape[ragged ? 0 : 1], h = out.shape[ragged ? 1 : 2],
                     d = out.shape[ragged ? 2 : 3];
  const std::int64_t rows = b * s * h;
  std::vector<std::int64_t> o_shape{b, s, h, d}, lse_shape{b, h, s};
  if (ragged) {
    o_shape.erase(o_shape.begin());
    lse_shape.erase(lse_shape.begin());
  }
  const std::vector<float> oa = import_floats(o_a, "o_a", o_shape), ob = import_floats(o_b, "o_b", o_shape);
  const std::vector<float> la = import_floats(lse_a, "lse_a", lse_shape), lb = import_floats(lse_b, "lse_b", lse_shape);
  std::vector<float> row_a(rows), row_b(rows), row_lse(rows), merged(static_cast<std::size_t>(rows * d));
  const auto heads_first = [&](std::int64_t row) {  // index into [b, h, s] of row [b, s, h]
    return row / (s * h) * (s * h) + row % h * s + row / h % s;
  };
  nb::gil_scoped_release released;
  for (std::int64_t row = 0; row < rows; ++row) {
    row_a[row] = la[heads_first(row)];
    row_b[row] = lb[heads_first(row)];
  }
  merge_states(rows, d, oa.data(), row_a.data(), ob.data(), row_b.data(), merged.data(), row_lse.data());
  std::copy(merged.begin(), merged.end(), static_cast<float*>(out.data));
  for (std::int64_t row = 0; row < rows; ++row) static_cast<float*>(out_lse.data)[heads_first(row)] = row_lse[row];
}

std::pair<std::string, std::vector<std::string>> ask_support(const nb::tuple& problem, const std::string& device) {
  const AttentionProblem p = import_problem(problem);
  const Result<Device> kind = device_kind(device);
  if (!kind.ok()) return {"", {kind.status().message()}};
  const Support support = supports(p, kind.value());
  return {support.kernel, support.reasons};
}

/// The kind of a device, or why it is not available.
std::pair<std::string, std::string> ask_available(const std::string& device) {
  const Result<Device> kind = device_kind(device);
  if (!kind.ok()) return {"", kind.status().message()};
  const Status s = available(kind.value());
  return {s.ok() ? device_name(kind.value()) : "", s.message()};
}

}  // namespace

void bind_attention(nb::module_& m) {
  const auto any = nb::arg().none();
  m.def("attend", &attend_tensors, nb::arg(), any, any, any, any, any, nb::arg(), any, any, any, any, any, any);
  m.def("merge", &merge, any, any, any, any, any, any);
  m.def("supports", &ask_support);
  m.def("available", &ask_available);
}

}  // namespace mpfa::python
