#include "attention/reference/keys.hpp"

#include <algorithm>
#include <cstdint>

#include "cache/convert.hpp"

namespace mpfa::reference {
namespace {

/// Tokens [0, count) of the sequence, page by page: [count, head_dim].
std::vector<float> read_pages(const BlockFormat& f, std::int64_t head_dim, const OperandPages& pages,
                              const std::int32_t* table, std::int64_t page_size, std::int64_t g, std::int64_t count) {
  std::vector<float> x(static_cast<std::size_t>(count * head_dim));
  for (std::int64_t first = 0; first < count; first += page_size) {
    const std::int64_t n = std::min(page_size, count - first);
    dequantise_tokens(f, head_dim, 0, n, pages.page(table[first / page_size], g), pages.global_scale(g),
                      x.data() + first * head_dim, head_dim, 1);
  }
  return x;
}

/// The first d channels of bf16 rows [first, end) of a [.., kv_heads, row_size] array whose row 0 is token `origin`;
/// null when no row is read.
template <class T>
void read_wide(const std::uint16_t* data, std::int64_t row_size, std::int64_t origin, std::int64_t first,
               std::int64_t end, std::int64_t kv_heads, std::int64_t g, std::int64_t d, std::vector<T>& x) {
  if (data == nullptr) return;
  for (std::int64_t j = first; j < end; ++j) {
    const std::uint16_t* row = data + ((j - origin) * kv_heads + g) * row_size;
    for (std::int64_t c = 0; c < d; ++c) x[j * d + c] = static_cast<T>(bf16_to_float(row[c]));
  }
}

/// v_mean=page: every value gets the mean of its page back.
template <class Real>
void add_page_means(const CacheView& c, const std::int32_t* table, std::int64_t g, std::vector<Real>& v) {
  if (c.v_page_means == nullptr) return;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::int64_t page = table[static_cast<std::int64_t>(i) / c.head_dim_v / c.page_size];
    const std::uint16_t* mean = c.v_page_means + page * c.v_page_mean_page_stride + g * c.v_page_mean_head_stride;
    v[i] += static_cast<Real>(bf16_to_float(mean[static_cast<std::int64_t>(i) % c.head_dim_v]));
  }
}

template <class Real>
void apply_residual(const SequenceView& s, std::int64_t g, std::int64_t d, std::vector<Real>& v) {
  if (s.v_alpha == nullptr && s.v_beta == nullptr) return;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::int64_t c = g * d + static_cast<std::int64_t>(i) % d;
    if (s.v_alpha != nullptr) v[i] *= static_cast<Real>(s.v_alpha[c]);
    if (s.v_beta != nullptr) v[i] += static_cast<Real>(s.v_beta[c]);
  }
}

}  // namespace

template <class Real>
KeyHead<Real> load_keys(const AttentionProblem& p, const CacheView& cache, std::int64_t b, std::int64_t g) {
  KeyHead<Real> head;
  head.length = cache.lengths[b];
  const SequenceView* s = cache.sequences == nullptr ? nullptr : cache.sequences + b;
  const std::int64_t packed = s == nullptr ? head.length : s->packed_end;
  const std::int32_t* table = packed > 0 ? cache.page_table + b * cache.page_table_stride : nullptr;
  head.packed.k = read_pages(cache.k_format, p.head_dim, cache.k, table, p.page_size, g, packed);
  const std::vector<float> v = read_pages(cache.v_format, p.head_dim_v, cache.v, table, p.page_size, g, packed);
  head.packed.v.assign(v.begin(), v.end());
  add_page_means(cache, table, g, head.packed.v);
  if (s == nullptr) return head;

  apply_residual(*s, g, p.head_dim_v, head.packed.v);
  head.wide.k.resize(static_cast<std::size_t>(head.length * p.head_dim));
  head.wide.v.resize(static_cast<std::size_t>(head.length * p.head_dim_v));
  const std::int64_t sink = std::min(s->sink, head.length);
  const std::int64_t d = p.head_dim;
  const std::int64_t dv = p.head_dim_v;
  const std::int64_t v_row = cache.shared_kv ? d : dv;
  read_wide(s->sink_k, d, 0, 0, sink, p.kv_heads, g, d, head.wide.k);
  read_wide(cache.shared_kv ? s->sink_k : s->sink_v, v_row, 0, 0, sink, p.kv_heads, g, dv, head.wide.v);
  const std::int64_t begin = std::max(s->wide_begin, sink);
  read_wide(s->wide_k, d, s->wide_begin, begin, head.length, p.kv_heads, g, d, head.wide.k);
  read_wide(cache.shared_kv ? s->wide_k : s->wide_v, v_row, s->wide_begin, begin, head.length, p.kv_heads, g, dv,
            head.wide.v);
  return head;
}

template KeyHead<float> load_keys(const AttentionProblem&, const CacheView&, std::int64_t, std::int64_t);
template KeyHead<double> load_keys(const AttentionProblem&, const CacheView&, std::int64_t, std::int64_t);

}  // namespace mpfa::reference
