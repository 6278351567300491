#include <algorithm>
#include <cstdint>

#include "attention/check.hpp"
#include "attention/sequences.hpp"
#include "mpfa/attention.hpp"

namespace mpfa {
namespace {

Status check_equal(const char* name, std::int64_t given, std::int64_t expected) {
  if (given == expected) return {};
  return invalid("{} is {}, the plan was made for {}; pass matching tensors or plan again", name, given, expected);
}

Status check_operand(const char* name, const BlockFormat& given, const BlockFormat& expected, const OperandPages& pages,
                     std::int64_t head_dim, std::int64_t page_size, bool any_packed) {
  if (given != expected) {
    return invalid("the cache holds {} as {}, the recipe says {}; attend with the recipe the cache was made with", name,
                   format_name(given), format_name(expected));
  }
  if (!any_packed) return {};
  const PageGeometry g = page_geometry(given, head_dim, page_size);
  if (pages.data == nullptr) return invalid("cache.{}.data is null; the page table uses pages", name);
  if (pages.scales == nullptr && g.scale_bytes() > 0) {
    return invalid("cache.{}.scales is null; format {} has {} scale bytes per page and head", name, format_name(given),
                   g.scale_bytes());
  }
  if ((g.data_rows > 1 && pages.data_row_stride < g.data_row_bytes) ||
      (g.scale_rows > 1 && pages.scale_row_stride < g.scale_row_bytes)) {
    return invalid("cache.{} has row strides of {} data and {} scale bytes; format {} needs at least {} and {}", name,
                   pages.data_row_stride, pages.scale_row_stride, format_name(given), g.data_row_bytes,
                   g.scale_row_bytes);
  }
  return {};
}

Status check_page_table(const AttentionProblem& p, const CacheView& c, std::int64_t b, std::int64_t packed) {
  const std::int64_t used = (packed + p.page_size - 1) / p.page_size;
  if (used > c.page_table_stride) {
    return out_of_range(
        "sequence {} has {} tokens in pages of {}, which takes {} entries; the page table has {} columns", b, packed,
        p.page_size, used, c.page_table_stride);
  }
  if (used == 0) return {};
  if (c.page_table == nullptr) return invalid("cache.page_table is null; sequence {} uses {} pages", b, used);
  for (std::int64_t i = 0; i < used; ++i) {
    const std::int32_t id = c.page_table[b * c.page_table_stride + i];
    if (id >= 0 && id < c.num_pages) continue;
    return out_of_range("page_table[{}, {}] is {}; page ids must be in [0, {})", b, i, id, c.num_pages);
  }
  return {};
}

/// The view says that V lies in the bytes of K exactly when it does.
Status check_sharing(const AttentionProblem& p, const CacheView& c) {
  if (!c.shared_kv) {
    const bool aliased = c.k.data != nullptr && c.k.data == c.v.data;
    if (!aliased || p.recipe.rotate == Rotate::none) return {};
    return invalid(
        "cache.k and cache.v are the same memory and K is rotated; set cache.shared_kv, so that the output "
        "is rotated back in K's blocks");
  }
  const Status s = check_shared_kv(p.recipe, p.head_dim, p.head_dim_v);
  if (!s.ok()) return {s.code(), "attend: " + s.message()};
  const bool same_data = c.v.data == c.k.data && c.v.data_page_stride == c.k.data_page_stride &&
                         c.v.data_head_stride == c.k.data_head_stride && c.v.data_row_stride == c.k.data_row_stride;
  const bool same_scales = c.v.scales == c.k.scales && c.v.scale_page_stride == c.k.scale_page_stride &&
                           c.v.scale_head_stride == c.k.scale_head_stride &&
                           c.v.scale_row_stride == c.k.scale_row_stride && c.v.global == c.k.global;
  if (same_data && same_scales) return {};
  return invalid("cache.shared_kv is set, but cache.v names other memory than cache.k; copy k to v or unset it");
}

/// Every key that some row of the call reads as bf16 must have its bf16 copy.
Status check_wide_tokens(const AttentionProblem& p, const AttentionTensors& t, std::int64_t b) {
  const SequenceView& s = t.cache.sequences[b];
  const std::int64_t length = t.cache.lengths[b];
  if (s.packed_end < 0 || s.packed_end > length || s.sink < 0 || s.wide_begin < 0) {
    return out_of_range(
        "sequence {} has packed_end {}, sink {} and wide_begin {} at length {}; 0 <= packed_end <= length "
        "and sink, wide_begin >= 0 are needed",
        b, s.packed_end, s.sink, s.wide_begin, length);
  }
  const std::int64_t rows = query_rows(t, b).count;
  for (std::int64_t i = 0; i < rows; ++i) {
    const KeyRange keys = visible_keys(p, i, rows, length);
    if (keys.begin >= keys.end) continue;
    const KeyRange packed = packed_keys(p, t, b, keys);
    const bool no_sink_v = s.sink_v == nullptr && !t.cache.shared_kv;
    if (keys.begin < packed.begin && (s.sink_k == nullptr || no_sink_v)) {
      return invalid("sequence {} keeps {} sink tokens in bf16, but sink_k or sink_v is null", b, s.sink);
    }
    const std::int64_t first = std::max({packed.begin, packed.end, keys.begin});
    if (first >= keys.end) continue;
    if (first < s.wide_begin) {
      return out_of_range(
          "row {} of sequence {} reads key {} as bf16, but bf16 copies begin at {}; attend to the rows of "
          "the newest append only, in the call that follows it",
          i, b, first, s.wide_begin);
    }
    if (s.wide_k == nullptr || (s.wide_v == nullptr && !t.cache.shared_kv)) {
      return invalid("row {} of sequence {} reads key {} as bf16, but wide_k or wide_v is null", i, b, first);
    }
  }
  return {};
}

Status check_sequence(const AttentionProblem& p, const AttentionTensors& t, std::int64_t b) {
  const CacheView& c = t.cache;
  const std::int64_t length = c.lengths[b];
  if (length < 0 || length > p.max_kv) {
    return out_of_range("lengths[{}] is {}; the plan was made for lengths in [0, {}]", b, length, p.max_kv);
  }
  if (c.sequences == nullptr) return check_page_table(p, c, b, length);
  MPFA_RETURN_IF_ERROR(check_wide_tokens(p, t, b));
  const SequenceView& s = c.sequences[b];
  if (!keeps_wide_tokens(p.recipe) && (s.sink > 0 || s.packed_end < length)) {
    return invalid(
        "sequence {} has bf16 tokens (sink {}, packed_end {} of {}), recipe {} keeps none; attend with the "
        "recipe the cache was made with",
        b, s.sink, s.packed_end, length, recipe_text(p.recipe));
  }
  if (c.shared_kv && (s.k_mean == nullptr) != (s.v_mean == nullptr)) {
    return invalid(
        "sequence {} has only one of k_mean and v_mean, but V is part of the centred K (shared_kv); pass the first {} "
        "channels of k_mean as v_mean",
        b, p.head_dim_v);
  }
  if ((s.v_alpha == nullptr) != (s.v_beta == nullptr)) {
    return invalid("sequence {} has only one of v_alpha and v_beta; pass both or none", b);
  }
  MPFA_RETURN_IF_ERROR(check_page_table(p, c, b, s.packed_end));
  if (p.recipe.v_mean == VMean::page && s.packed_end > 0 && c.v_page_means == nullptr) {
    return invalid("recipe {} has a mean of V in every page, but cache.v_page_means is null; pass them",
                   recipe_text(p.recipe));
  }
  const QCentre q_centre = p.recipe.q_centre;
  const bool centred_q = q_centre == QCentre::mean || q_centre == QCentre::fixed;
  if (centred_q && p.recipe.rank_one != RankOne::off && s.q_mean != nullptr && s.packed_end > 0 &&
      c.rank_one == nullptr) {
    return invalid("sequence {} has a q_mean, but cache.rank_one is null; pass its terms or use rank_one=off", b);
  }
  return {};
}

}  // namespace

Status check_cache_shape(const AttentionProblem& p, const CacheView& c) {
  MPFA_RETURN_IF_ERROR(check_equal("cache.page_size", c.page_size, p.page_size));
  MPFA_RETURN_IF_ERROR(check_equal("cache.kv_heads", c.kv_heads, p.kv_heads));
  MPFA_RETURN_IF_ERROR(check_equal("cache.head_dim", c.head_dim, p.head_dim));
  MPFA_RETURN_IF_ERROR(check_equal("cache.head_dim_v", c.head_dim_v, p.head_dim_v));
  if (c.rank_one != nullptr) MPFA_RETURN_IF_ERROR(check_equal("cache.group", c.group, p.q_heads / p.kv_heads));
  MPFA_RETURN_IF_ERROR(check_sharing(p, c));
  if (c.v_page_means != nullptr && p.recipe.v_mean != VMean::page) {
    return invalid(
        "the cache has means of V in its pages, recipe {} has none; attend with the recipe the cache was made "
        "with",
        recipe_text(p.recipe));
  }
  return {};
}

Status check_cache_pages(const AttentionProblem& p, const CacheView& c, bool any_packed) {
  MPFA_RETURN_IF_ERROR(check_operand("k", c.k_format, p.recipe.k, c.k, p.head_dim, p.page_size, any_packed));
  return check_operand("v", c.v_format, p.recipe.v, c.v, p.head_dim_v, p.page_size, any_packed);
}

Status check_cache(const AttentionProblem& p, const AttentionTensors& t) {
  const CacheView& c = t.cache;
  MPFA_RETURN_IF_ERROR(check_cache_shape(p, c));
  if (p.batch > 0 && c.lengths == nullptr) return invalid("cache.lengths is null; {} lengths are needed", p.batch);
  bool any_packed = false;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    MPFA_RETURN_IF_ERROR(check_sequence(p, t, b));
    any_packed = any_packed || (c.sequences == nullptr ? c.lengths[b] : c.sequences[b].packed_end) > 0;
  }
  return check_cache_pages(p, c, any_packed);
}

}  // namespace mpfa
