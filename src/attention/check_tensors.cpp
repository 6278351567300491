#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "attention/check.hpp"
#include "attention/names.hpp"
#include "attention/sequences.hpp"
#include "mpfa/attention.hpp"

namespace mpfa {
namespace {

/// A pointer is needed exactly when its option is set.
Status check_presence(const char* name, const void* pointer, bool needed, const char* option) {
  if ((pointer != nullptr) == needed) return {};
  if (needed) return invalid("{} is null although {} is set; pass it or unset {}", name, option, option);
  return invalid("{} was given although {} is not set; set it in the problem or pass null", name, option);
}

constexpr std::int64_t kMaxSpan = std::int64_t{1} << 58;

std::string shape_text(const std::array<std::int64_t, 4>& s) {
  return fmt::format("[{}, {}, {}, {}]", s[0], s[1], s[2], s[3]);
}

std::int64_t elements(const std::array<std::int64_t, 4>& s) {
  return s[0] * s[1] * s[2] * s[3];
}

/// Distance from the first element to the last one, in elements, must leave room for bytes in 64 bits.
template <class View>
Status check_span(const char* name, const View& x) {
  std::int64_t span = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    std::int64_t step = 0;
    const bool far = __builtin_mul_overflow(x.stride[i], std::max<std::int64_t>(x.shape[i] - 1, 0), &step) ||
                     __builtin_add_overflow(span, step < 0 ? -(step + 1) : step, &span) || span > kMaxSpan;
    if (!far) continue;
    return invalid("{} has strides [{}, {}, {}, {}] for shape {}: no memory is that large; pass strides in elements",
                   name, x.stride[0], x.stride[1], x.stride[2], x.stride[3], shape_text(x.shape));
  }
  return {};
}

template <class View>
Status check_rows(const char* name, const View& x, DType dtype, const std::array<std::int64_t, 4>& shape) {
  if (x.dtype != dtype) {
    return invalid("{} is {}, the plan was made for {}; convert it or plan again", name, dtype_name(x.dtype),
                   dtype_name(dtype));
  }
  if (x.shape != shape) return invalid("{} has shape {}, {} is needed", name, shape_text(x.shape), shape_text(shape));
  if (elements(shape) == 0) return {};
  if (x.data == nullptr) return invalid("{}.data is null; {} elements are needed", name, elements(shape));
  if (shape[3] > 1 && x.stride[3] != 1) {
    return invalid("{} has stride {} along the head dim; it must be 1 (make the last dimension contiguous)", name,
                   x.stride[3]);
  }
  return check_span(name, x);
}

/// Two elements of out at one address would be a race between rows.
Status check_no_overlap(const MutableTensorView& out) {
  std::array<std::array<std::int64_t, 2>, 4> dims{};  // stride, extent
  for (std::size_t i = 0; i < 4; ++i) dims[i] = {out.shape[i] > 1 ? std::abs(out.stride[i]) : 0, out.shape[i]};
  std::sort(dims.begin(), dims.end());
  std::int64_t span = 1;
  for (const auto& [stride, extent] : dims) {
    if (extent <= 1) continue;
    if (stride < span) {
      return invalid("out has strides [{}, {}, {}, {}] for shape {}: rows overlap; pass a tensor of distinct elements",
                     out.stride[0], out.stride[1], out.stride[2], out.stride[3], shape_text(out.shape));
    }
    span = stride * (extent - 1) + span;
  }
  return {};
}

}  // namespace

Status check_cu_seqlens(const AttentionProblem& p, const std::int64_t* cu, std::int64_t total_q) {
  if (cu[0] != 0) return invalid("cu_seqlens_q[0] is {}; it must be 0", cu[0]);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t rows = cu[b + 1] - cu[b];
    if (rows < 0)
      return invalid("cu_seqlens_q falls from {} to {} at {}; it must not decrease", cu[b], cu[b + 1], b + 1);
    if (rows > p.max_q)
      return out_of_range("sequence {} has {} query rows, max_q is {}; plan with more", b, rows, p.max_q);
  }
  if (cu[p.batch] != total_q) {
    return invalid("cu_seqlens_q ends at {}, q has {} rows; they must be equal", cu[p.batch], total_q);
  }
  return {};
}

Status check_extras(const AttentionProblem& p, const AttentionTensors& t, std::int64_t rows, std::int64_t keys) {
  MPFA_RETURN_IF_ERROR(check_presence("sinks", t.sinks, p.sinks, "sinks"));
  MPFA_RETURN_IF_ERROR(check_presence("alibi_slopes", t.alibi_slopes, p.alibi, "alibi"));
  MPFA_RETURN_IF_ERROR(check_presence("mask.data", t.mask.data, p.mask != MaskTensor::none, "mask"));
  if (p.mask == MaskTensor::none) return {};
  const DType dtype = p.mask == MaskTensor::boolean ? DType::u8 : DType::f32;
  if (t.mask.dtype != dtype) {
    return invalid("mask is {}; a boolean mask is u8 and an additive one f32", dtype_name(t.mask.dtype));
  }
  const auto& s = t.mask.shape;
  if ((s[0] == 1 || s[0] == p.batch) && (s[1] == 1 || s[1] == p.q_heads) && s[2] >= rows && s[3] >= keys) {
    return check_span("mask", t.mask);
  }
  return invalid("mask has shape {}; [{} or 1, {} or 1, >= {} query rows, >= {} keys] is needed", shape_text(s),
                 p.batch, p.q_heads, rows, keys);
}

Status check_query(const AttentionProblem& p, const AttentionTensors& t) {
  const std::array<std::int64_t, 4> shape{t.cu_seqlens_q == nullptr ? p.batch : 1, t.q.shape[1], p.q_heads, p.head_dim};
  if (shape[1] < 0) return invalid("q has {} rows; 0 or more are needed", shape[1]);
  if (t.cu_seqlens_q == nullptr && shape[1] > p.max_q) {
    return out_of_range("q has {} rows per sequence, max_q is {}; plan with more", shape[1], p.max_q);
  }
  const std::int64_t capacity = p.total_q > 0 ? p.total_q : p.batch * p.max_q;
  if (shape[0] > 0 && shape[1] > capacity / shape[0]) {
    return out_of_range("q has {} x {} rows, the plan was made for {} in all; plan with more", shape[0], shape[1],
                        capacity);
  }
  return check_rows("q", t.q, p.q_dtype, shape);
}

Status check_output(const AttentionProblem& p, const AttentionTensors& t) {
  const std::array<std::int64_t, 4> shape{t.q.shape[0], t.q.shape[1], p.q_heads, p.head_dim_v};
  MPFA_RETURN_IF_ERROR(check_rows("out", t.out, p.out_dtype, shape));
  return elements(shape) == 0 ? Status{} : check_no_overlap(t.out);
}

Status check_inputs(const AttentionProblem& p, const AttentionTensors& t) {
  MPFA_RETURN_IF_ERROR(check_query(p, t));
  if (t.cu_seqlens_q != nullptr) MPFA_RETURN_IF_ERROR(check_cu_seqlens(p, t.cu_seqlens_q, t.q.shape[1]));
  MPFA_RETURN_IF_ERROR(check_cache(p, t));
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    rows = std::max(rows, query_rows(t, b).count);
    keys = std::max(keys, t.cache.lengths[b]);
  }
  return check_extras(p, t, rows, keys);
}

Status check_tensors(const AttentionProblem& p, const AttentionTensors& t) {
  MPFA_RETURN_IF_ERROR(check_inputs(p, t));
  return check_output(p, t);
}

Status check_device_tensors(const AttentionProblem& p, const AttentionTensors& t) {
  MPFA_RETURN_IF_ERROR(check_query(p, t));
  MPFA_RETURN_IF_ERROR(check_output(p, t));
  const CacheView& c = t.cache;
  MPFA_RETURN_IF_ERROR(check_cache_shape(p, c));
  if (p.batch > 0 && c.lengths == nullptr) return invalid("cache.lengths is null; {} lengths are needed", p.batch);
  if (p.batch > 0 && p.max_kv > 0) {
    const std::int64_t pages = (p.max_kv + p.page_size - 1) / p.page_size;
    if (c.page_table == nullptr || c.page_table_stride < pages) {
      return invalid("the page table has {} columns; sequences of max_kv = {} tokens in pages of {} need {}",
                     c.page_table == nullptr ? 0 : c.page_table_stride, p.max_kv, p.page_size, pages);
    }
  }
  MPFA_RETURN_IF_ERROR(check_cache_pages(p, c, p.max_kv > 0));
  return check_extras(p, t, t.cu_seqlens_q == nullptr ? t.q.shape[1] : p.max_q, p.max_kv);
}

}  // namespace mpfa
