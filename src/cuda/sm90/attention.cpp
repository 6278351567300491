#include "cuda/sm90/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "attention/check.hpp"
#include "attention/names.hpp"
#include "attention/sequences.hpp"
#include "cuda/sm90/decode/launch.h"
#include "cuda/sm90/device.hpp"
#include "cuda/sm90/expand/shapes.h"
#include "cuda/sm90/support.hpp"
#include "cuda/sm90/verify/shapes.h"

namespace mpfa::sm90 {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

std::int32_t window(std::int64_t keys) {
  return static_cast<std::int32_t>(std::min(keys, kMaxInt / 2));
}

DecodeShape decode_shape(const AttentionProblem& p) {
  DecodeShape s;
  s.head_dim = static_cast<std::int32_t>(p.head_dim);
  s.operands = operands_of(p.recipe).value_or(OperandPair{});
  s.batch = static_cast<std::int32_t>(p.batch);
  s.kv_heads = static_cast<std::int32_t>(p.kv_heads);
  s.group = static_cast<std::int32_t>(p.q_heads / p.kv_heads);
  s.max_q = static_cast<std::int32_t>(p.max_q);
  s.max_kv = static_cast<std::int32_t>(p.max_kv);
  s.window_left = window(p.window_left);
  s.fixed_split_keys = p.batch_invariant ? static_cast<std::int32_t>(kFixedSplitKeys) : 0;
  const bool rare = keeps_wide_tokens(p.recipe) || p.recipe.v_mean == VMean::page;
  const auto taken = [&](const BlockFormat& f) {
    return has_verify_format(f, p.head_dim, page_geometry(f, p.head_dim, 1).scale_row_bytes);
  };
  s.masked = p.mask != MaskTensor::none || p.alibi || p.softcap > 0.0F;
  // Queries are rounded to nvfp4 and terms added where P is in e4m3 too.
  const Recipe& r = p.recipe;
  const bool rounds_to_fp4 = r.q.element == Element::e2m1;
  const bool queries = !rounds_to_fp4 ||
                       (r.p == PMode::e4m3 && (r.rank_one == RankOne::off || has_verify_terms(p.q_heads / p.kv_heads)));
  s.rounded = rounds_to_fp4 || r.p == PMode::e4m3;
  s.uncentred_groups = r.centre == Centre::none && r.k.block_channels > 0 &&
                       (r.k.scale == ScaleType::f16 || r.k.scale == ScaleType::f32);
  s.verify = !rare && queries && has_verify_pages(p.page_size) && taken(p.recipe.k) && taken(p.recipe.v) &&
             !(s.masked && p.recipe.p == PMode::e4m3);
  return s;
}

Status check_aligned(const char* name, const void* data, std::int64_t bytes,
                     std::initializer_list<std::int64_t> steps) {
  std::uintptr_t all = reinterpret_cast<std::uintptr_t>(data);
  for (const std::int64_t step : steps) all |= static_cast<std::uintptr_t>(step);
  if (all % static_cast<std::uintptr_t>(bytes) == 0) return {};
  return invalid("{} must start and step by multiples of {} bytes for the sm90 kernel; align it or use Device::cpu",
                 name, bytes);
}

Status fill_pages(const char* name, const OperandPages& o, const BlockFormat& f, std::int64_t d, DecodePages& out) {
  const PageGeometry rows = page_geometry(f, d, 1);
  const std::int64_t scale_bytes = rows.scale_row_bytes;
  const std::int64_t alignment = rows.data_row_bytes % 16 == 0 ? 16 : 8;
  MPFA_RETURN_IF_ERROR(
      check_aligned(name, o.data, alignment, {o.data_page_stride, o.data_head_stride, o.data_row_stride}));
  if (std::has_single_bit(static_cast<std::uint64_t>(scale_bytes))) {  // others are read byte by byte
    MPFA_RETURN_IF_ERROR(check_aligned(name, o.scales, std::min<std::int64_t>(scale_bytes, 16),
                                       {o.scale_page_stride, o.scale_head_stride, o.scale_row_stride}));
  }
  for (const std::int64_t stride : {o.data_page_stride, o.data_row_stride, o.scale_page_stride, o.scale_row_stride}) {
    if (stride >= 0 && stride <= kMaxInt) continue;
    return invalid("{} has a stride of {} bytes; page and row strides must be in [0, {}]", name, stride, kMaxInt);
  }
  if (o.data_row_stride < rows.data_row_bytes) {
    return invalid("{} has rows of {} bytes, {} are needed", name, o.data_row_stride, rows.data_row_bytes);
  }
  out.data = reinterpret_cast<const std::uint8_t*>(o.data);
  out.scales = scale_bytes > 0 ? reinterpret_cast<const std::uint8_t*>(o.scales) : nullptr;
  // Other formats do not use a head's global scale.
  out.global = f.scale == ScaleType::e4m3 || f.rule == ScaleRule::fixed ? o.global : nullptr;
  out.data_head = o.data_head_stride, out.scale_head = o.scale_head_stride;
  out.data_page = static_cast<std::int32_t>(o.data_page_stride);
  out.data_row = static_cast<std::int32_t>(o.data_row_stride);
  out.scale_page = static_cast<std::int32_t>(o.scale_page_stride);
  out.scale_row = static_cast<std::int32_t>(o.scale_row_stride);
  set_scale_groups(f, d, out);
  return {};
}

/// Byte strides of the mask tensor; dimensions of one element do not step.
Status fill_mask(const TensorView& mask, DecodeMask& out) {
  if (mask.data == nullptr) return {};
  const std::int64_t bytes = mask.dtype == DType::f32 ? 4 : 1;
  MPFA_RETURN_IF_ERROR(check_aligned("mask", mask.data, bytes, {}));
  const auto step = [&](std::size_t i) { return mask.shape[i] <= 1 ? 0 : mask.stride[i] * bytes; };
  if (step(3) > kMaxInt || step(3) < -kMaxInt) {
    return invalid("mask steps by {} elements from key to key; at most {} are taken", mask.stride[3], kMaxInt / bytes);
  }
  out.data = static_cast<const std::uint8_t*>(mask.data);
  out.batch = step(0), out.head = step(1), out.row = step(2);
  out.key = static_cast<std::int32_t>(step(3));
  out.additive = mask.dtype == DType::f32 ? 1 : 0;
  return {};
}

bool rows_side_by_side(const DecodePages& pages, const BlockFormat& f, std::int64_t d) {
  const PageGeometry rows = page_geometry(f, d, 1);
  return pages.data_row == rows.data_row_bytes && (pages.scales == nullptr || pages.scale_row == rows.scale_row_bytes);
}

/// The launch of a call without the verify kernel, if that is a choice: up to kFewRows rows.
std::optional<DecodeLaunch> without_verify(DecodeShape shape, const DecodeLaunch& launch,
                                           std::int32_t multiprocessors) {
  if (!launch.verify || launch.expand || shape.group * shape.max_q > kFewRows) return std::nullopt;
  shape.verify = false;
  return plan_decode(shape, multiprocessors);
}

/// A wrong device would end in an illegal access that poisons the process.
Status check_pointers(const AttentionTensors& t, Workspace workspace) {
  const CacheView& c = t.cache;
  // Formats without scales leave their pointer unread.
  const auto scales = [](const BlockFormat& f, const OperandPages& o) {
    return f.scale == ScaleType::none ? nullptr : o.scales;
  };
  return check_device_memory("attend", {{"q", t.q.data},
                                        {"out", t.out.data},
                                        {"lse", t.lse},
                                        {"cu_seqlens_q", t.cu_seqlens_q},
                                        {"sinks", t.sinks},
                                        {"alibi_slopes", t.alibi_slopes},
                                        {"mask", t.mask.data},
                                        {"cache.k.data", c.k.data},
                                        {"cache.k.scales", scales(c.k_format, c.k)},
                                        {"cache.k.global", c.k.global},
                                        {"cache.v.data", c.v.data},
                                        {"cache.v.scales", scales(c.v_format, c.v)},
                                        {"cache.v.global", c.v.global},
                                        {"cache.rank_one", c.rank_one},
                                        {"cache.v_page_means", c.v_page_means},
                                        {"cache.page_table", c.page_table},
                                        {"cache.lengths", c.lengths},
                                        {"cache.sequences", c.sequences},
                                        {"the workspace", workspace.data}});
}

}  // namespace

Status plan(Plan& plan) {
  const Result<int> device = current_device();
  if (!device.ok()) return device.status();
  const DecodeShape shape = decode_shape(plan.problem);
  if (!has_decode_kernel(shape.operands)) {
    return {StatusCode::internal, fmt::format("plan: sm90: no kernel was compiled for recipe {}; please report it",
                                              recipe_text(plan.problem.recipe))};
  }
  plan.multiprocessors = device.value();
  const DecodeLaunch launch = plan_decode(shape, plan.multiprocessors);
  plan.split_keys = static_cast<std::int64_t>(launch.fixed_split) * kTileKeys;
  plan.workspace_bytes = launch.workspace_bytes;
  if (const auto other = without_verify(shape, launch, plan.multiprocessors)) {
    plan.workspace_bytes = std::max(plan.workspace_bytes, other->workspace_bytes);
  }
  return {};
}

Status attend(const Plan& plan, const AttentionTensors& t, Workspace workspace) {
  const AttentionProblem& p = plan.problem;
  MPFA_RETURN_IF_ERROR(check_pointers(t, workspace));
  MPFA_RETURN_IF_ERROR(check_stream("attend", t.stream));
  const DecodeShape shape = decode_shape(p);
  DecodeParams d{};
  if (p.max_kv > 0) {
    MPFA_RETURN_IF_ERROR(fill_pages("cache.k", t.cache.k, p.recipe.k, p.head_dim, d.k));
    MPFA_RETURN_IF_ERROR(fill_pages("cache.v", t.cache.v, p.recipe.v, p.head_dim, d.v));
  }
  MPFA_RETURN_IF_ERROR(check_aligned("q", t.q.data, 16, {t.q.stride[0] * 2, t.q.stride[1] * 2, t.q.stride[2] * 2}));
  d.q = t.q.data;
  d.q_batch = t.q.stride[0], d.q_row = t.q.stride[1], d.q_head = t.q.stride[2];
  d.out = t.out.data;
  d.out_batch = t.out.stride[0], d.out_row = t.out.stride[1], d.out_head = t.out.stride[2];
  d.lse = t.lse;
  d.lse_rows = t.q.shape[1];
  d.cu_seqlens_q = t.cu_seqlens_q;
  d.lengths = t.cache.lengths;
  d.page_table = t.cache.page_table;
  d.page_table_stride = t.cache.page_table_stride;
  d.sequences = t.cache.sequences;
  d.sinks = t.sinks;
  d.alibi_slopes = t.alibi_slopes;
  MPFA_RETURN_IF_ERROR(fill_mask(t.mask, d.mask));
  d.batch = shape.batch, d.kv_heads = shape.kv_heads, d.q_heads = static_cast<std::int32_t>(p.q_heads);
  d.group = shape.group;
  d.sq = t.cu_seqlens_q == nullptr ? static_cast<std::int32_t>(t.q.shape[1]) : shape.max_q;
  d.num_pages = static_cast<std::int32_t>(std::min(t.cache.num_pages, kMaxInt));
  d.page_size = static_cast<std::int32_t>(p.page_size), d.max_kv = shape.max_kv;
  d.window_left = window(p.window_left), d.window_right = window(p.window_right);
  d.causal = p.causal ? 1 : 0;
  d.q_bf16 = p.q_dtype == DType::bf16 ? 1 : 0;
  d.round_q_bf16 = p.q_dtype == DType::f16 && p.recipe.q.element == Element::bf16 ? 1 : 0;
  const Recipe& r = p.recipe;
  d.round_q = is_wide(r.q.element) ? 0 : 1;
  d.centre_q = r.q_centre == QCentre::none ? 0 : 1;
  d.p_scale = r.p == PMode::e4m3 ? r.p_scale : 0.0F;
  d.p_unit = r.p == PMode::e4m3 ? 1.0F / r.p_scale : 1.0F;
  d.sum_codes = r.denominator == Denominator::same_codes ? 1 : 0;
  if (d.centre_q != 0 && r.rank_one != RankOne::off && d.sequences != nullptr) {
    if (t.cache.rank_one == nullptr) {
      return invalid("cache.rank_one is null and recipe {} centres Q; pass its terms or use rank_one=off",
                     recipe_text(r));
    }
    d.rank_one = t.cache.rank_one;
    d.rank_one_page = t.cache.rank_one_page_stride, d.rank_one_head = t.cache.rank_one_head_stride;
    d.rank_one_wide = t.cache.rank_one_wide ? 1 : 0;
  }
  if (r.v_mean == VMean::page) {
    d.page_means = t.cache.v_page_means;
    d.page_mean_page = t.cache.v_page_mean_page_stride, d.page_mean_head = t.cache.v_page_mean_head_stride;
  }
  d.out_type = p.out_dtype == DType::f32 ? 0 : p.out_dtype == DType::bf16 ? 1 : 2;
  d.scale = softmax_scale(p);
  d.softcap = p.softcap;
  d.page_div = make_divisor(static_cast<std::uint32_t>(d.page_size));
  d.group_div = make_divisor(static_cast<std::uint32_t>(d.group));
  d.wide = keeps_wide_tokens(p.recipe) && t.cache.sequences != nullptr ? 1 : 0;
  d.recent = static_cast<std::int32_t>(std::min(recent_tokens(p), kMaxInt / 2));
  d.commit_div = make_divisor(static_cast<std::uint32_t>(commit_unit(p.recipe, p.page_size)));
  if (p.head_dim == kernel_head_dim(shape.head_dim) && rows_side_by_side(d.k, p.recipe.k, p.head_dim) &&
      rows_side_by_side(d.v, p.recipe.v, p.head_dim)) {
    d.plain_keys = plain_keys(p.page_size);
  }
  DecodeLaunch launch = plan_decode(shape, plan.multiprocessors);
  if (const auto other = without_verify(shape, launch, plan.multiprocessors); other && !reaches_pages(d)) {
    launch = *other;
  }
  if (launch.verify && d.rank_one != nullptr) {
    const std::int64_t bytes = d.rank_one_wide != 0 ? 4 : 2;
    MPFA_RETURN_IF_ERROR(check_aligned("cache.rank_one", d.rank_one, 16, {d.rank_one_head * bytes}));
    MPFA_RETURN_IF_ERROR(check_aligned("cache.rank_one_page_stride", nullptr, kTermUnit, {d.rank_one_page * bytes}));
  }
  // Words that hold two bytes of scales are copied.
  if (launch.verify && page_geometry(r.k, p.head_dim, 1).scale_row_bytes == 2) {
    MPFA_RETURN_IF_ERROR(check_aligned("cache.k.scale_page_stride", nullptr, 4, {d.k.scale_page}));
  }
  if (launch.verify && page_geometry(r.v, p.head_dim, 1).scale_row_bytes == 2) {
    MPFA_RETURN_IF_ERROR(check_aligned("cache.v.scale_page_stride", nullptr, 4, {d.v.scale_page}));
  }
  if (launch.verify && !(launch.expand && expand_reaches_all(shape.operands)) && !reaches_pages(d)) {
    return invalid(
        "cache has {} pages whose strides, {}, {}, {} and {} bytes, have no large power of two as divisor; with more "
        "than 8 query rows of a KV head the sm90 kernel reaches 2^32 times that divisor: make them multiples of 256",
        d.num_pages, d.k.data_page, d.v.data_page, d.k.scale_page, d.v.scale_page);
  }
  const cudaError_t e = launch_decode(shape, launch, d, workspace.data, static_cast<cudaStream_t>(t.stream));
  return launch_status("attend", e);
}

}  // namespace mpfa::sm90
