#include "cuda/sm90/attention.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "attention/check.hpp"
#include "attention/names.hpp"
#include "attention/sequences.hpp"
#include "cuda/sm90/decode/fp4/launch.h"
#include "cuda/sm90/device.hpp"

namespace mpfa::sm90 {
namespace {

constexpr std::int64_t kMostQueries = 16;
constexpr std::int64_t kFixedSplitKeys = 2048;  // batch_invariant
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

class Reasons {
 public:
  template <class... Args>
  void add_if(bool condition, fmt::format_string<Args...> text, Args&&... args) {
    if (condition) all_.push_back("sm90: " + fmt::format(text, std::forward<Args>(args)...));
  }
  [[nodiscard]] std::vector<std::string> take() { return std::move(all_); }

 private:
  std::vector<std::string> all_;
};

/// How the kernel reads a format, or nothing.
std::optional<Operand> operand_of(const BlockFormat& f) {
  if (is_fp4(f)) return f.scale == ScaleType::e8m0 ? Operand::mxfp4 : Operand::nvfp4;
  if (f.axis != PackAxis::head_dim || f.block_keys != 1) return std::nullopt;
  const bool row = f.scale == ScaleType::f32 && f.block_channels == 0;
  const bool group = f.scale == ScaleType::f16 && f.block_channels >= 32;
  switch (f.element) {
    case Element::e2m1:
      if (f.scale == ScaleType::f32 && f.block_channels >= 32) return Operand::fp4_f32;
      return std::nullopt;
    case Element::int4:
      if (row || group) return Operand::int4;
      return std::nullopt;
    case Element::int8:
      if (row || group) return Operand::int8;
      return std::nullopt;
    case Element::e4m3:
      if (row || f.rule == ScaleRule::fixed) return Operand::e4m3;
      return std::nullopt;
    case Element::bf16: return Operand::bf16;
    default: return std::nullopt;
  }
}

std::optional<OperandPair> operands_of(const Recipe& r) {
  const std::optional<Operand> key = operand_of(r.k), value = operand_of(r.v);
  if (!key || !value || !has_decode_kernel(OperandPair{*key, *value})) return std::nullopt;
  return OperandPair{*key, *value};
}

/// Whether the kernel of these operands rounds q as the recipe says: to the 8-bit format of K, or for recipe `mpfa` to
/// nvfp4.
bool rounds_q(const Recipe& r, const std::optional<OperandPair>& operands) {
  if (!operands || r.q_terms != 1 || r.q.axis != PackAxis::head_dim || r.q.block_keys != 1) return false;
  if (*operands == OperandPair{Operand::nvfp4, Operand::e4m3}) return is_fp4(r.q) && r.q.rule == ScaleRule::amax;
  const bool row = r.q.scale == ScaleType::f32 && r.q.block_channels == 0;
  return row && r.q.element == r.k.element && (r.q.element == Element::e4m3 || r.q.element == Element::int8);
}

bool is_wide(Element e) {
  return e == Element::bf16 || e == Element::f16;
}

void check_recipe_fields(const AttentionProblem& p, Reasons& reasons) {
  const Recipe& r = p.recipe;
  const std::optional<OperandPair> operands = operands_of(r);
  reasons.add_if(!operands,
                 "K is {} and V is {}; both must be mxfp4, nvfp4, mxfp4_f32, fp8_e4m3, int8, int4 (any scale rule or "
                 "group) or bf16, or K nvfp4 and V fp8_e4m3; use one of these or Device::cpu",
                 format_name(r.k), format_name(r.v));
  reasons.add_if(!is_wide(r.q.element) && !rounds_q(r, operands),
                 "Q is {}{}; use q=bf16 or q=fp16, or q=K's format where that is fp8_e4m3 or int8, or q=nvfp4 for K "
                 "nvfp4 and V fp8_e4m3",
                 format_name(r.q), r.q_terms == 1 ? "" : " in two terms");
  reasons.add_if(r.k.element == Element::bf16 && r.q.element == Element::f16, "Q is fp16 and K is bf16; use q=bf16");
  reasons.add_if(r.p != PMode::bf16 && !(r.p == PMode::e4m3 && operands && operands->value == Operand::e4m3),
                 "P is rounded to something other than 16 bits; use p=bf16, or p=e4m3 where V is fp8_e4m3");
  const bool centres = r.q_centre == QCentre::mean || r.q_centre == QCentre::fixed;
  reasons.add_if(
      r.q_centre != QCentre::none && !(centres && is_fp4(r.q)),
      "Q is centred and is {}; use q_centre=none,rank_one=off, or the mean of the prompt or a calibrated one "
      "with q=nvfp4",
      format_name(r.q));
  reasons.add_if(r.rotate != Rotate::none, "the recipe rotates; use rotate=none");
  reasons.add_if(keeps_wide_tokens(r) && (!is_wide(r.q.element) || r.p != PMode::bf16),
                 "the recipe keeps tokens in 16 bits, Q is {} and P {}; use q=bf16 or q=fp16 and p=bf16, or "
                 "sink=0,recent=0",
                 format_name(r.q), r.p == PMode::bf16 ? "is in 16 bits" : "is rounded");
  reasons.add_if(r.phase_switch, "the recipe has a 16-bit phase; use phase_switch=off");
  reasons.add_if(r.v_mean == VMean::page, "V is centred by page; use v_mean=mean, v_mean=static or v_mean=none");
  reasons.add_if(r.v_residual, "V has an affine residual; use v_residual=off");
  reasons.add_if(r.logit_cap > 0.0F, "logit_cap is set; use logit_cap=0");
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
  s.fixed_split_keys = p.batch_invariant ? static_cast<std::int32_t>(kFixedSplitKeys) : 0;
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

/// A wrong device would end in an illegal access that poisons the process. Checks one pointer of every kind of
/// argument.
Status check_pointers(const AttentionTensors& t, Workspace workspace) {
  MPFA_RETURN_IF_ERROR(check_on_device("q", t.q.data));
  MPFA_RETURN_IF_ERROR(check_on_device("out", t.out.data));
  MPFA_RETURN_IF_ERROR(check_on_device("cache.k", t.cache.k.data));
  MPFA_RETURN_IF_ERROR(check_on_device("cache.v", t.cache.v.data));
  MPFA_RETURN_IF_ERROR(check_on_device("cache.page_table", t.cache.page_table));
  MPFA_RETURN_IF_ERROR(check_on_device("cache.lengths", t.cache.lengths));
  MPFA_RETURN_IF_ERROR(check_on_device("mask", t.mask.data));
  return check_on_device("the workspace", workspace.data);
}

std::int32_t window(std::int64_t keys) {
  return static_cast<std::int32_t>(std::min(keys, kMaxInt / 2));
}

}  // namespace

Support supports(const AttentionProblem& p) {
  Reasons reasons;
  check_recipe_fields(p, reasons);
  const std::optional<OperandPair> operands = operands_of(p.recipe);
  reasons.add_if(
      p.head_dim != p.head_dim_v || (operands && !has_decode_kernel(*operands, p.head_dim)),
      "head_dim is {} and head_dim_v {}; both must be 64, 128 or 256, or for formats other than int4, int8 and "
      "mxfp4_f32 the same multiple of 16 from 32 to 256",
      p.head_dim, p.head_dim_v);
  reasons.add_if(keeps_wide_tokens(p.recipe) && p.head_dim != kernel_head_dim(static_cast<std::int32_t>(p.head_dim)),
                 "head_dim is {} and the recipe keeps tokens in 16 bits; that takes 64, 128 or 256", p.head_dim);
  reasons.add_if(p.max_q > kMostQueries, "max_q is {}; the decode kernel takes 1 to {} queries of a sequence", p.max_q,
                 kMostQueries);
  reasons.add_if(p.q_dtype == DType::f32, "q is f32; convert it to bf16 or f16");
  const std::int64_t rows = p.q_heads / p.kv_heads * p.max_q;
  std::int64_t tiles = 0;
  const bool too_large = __builtin_mul_overflow(p.batch * p.kv_heads * ((rows + 7) / 8),
                                                p.max_kv / kTileKeys + 2 + kFixedSplitKeys / kTileKeys, &tiles) ||
                         tiles > kMaxInt || p.max_kv > kMaxInt / 2;
  reasons.add_if(too_large, "batch {} x kv_heads {} x max_kv {} is more than 2^31 tiles of {} keys; split the batch",
                 p.batch, p.kv_heads, p.max_kv, kTileKeys);
  if (const Result<int> device = current_device(); !device.ok()) {
    std::vector<std::string> all = reasons.take();
    all.push_back(device.status().message());
    return {"", std::move(all)};
  }
  std::vector<std::string> all = reasons.take();
  if (all.empty()) return {kKernelName, {}};
  return {"", std::move(all)};
}

Status plan(Plan& plan) {
  const Result<int> device = current_device();
  if (!device.ok()) return device.status();
  plan.multiprocessors = device.value();
  const DecodeLaunch launch = plan_decode(decode_shape(plan.problem), plan.multiprocessors);
  plan.split_keys = static_cast<std::int64_t>(launch.fixed_split) * kTileKeys;
  plan.workspace_bytes = launch.workspace_bytes;
  return {};
}

Status attend(const Plan& plan, const AttentionTensors& t, Workspace workspace) {
  const AttentionProblem& p = plan.problem;
  MPFA_RETURN_IF_ERROR(check_pointers(t, workspace));
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
  d.out_type = p.out_dtype == DType::f32 ? 0 : p.out_dtype == DType::bf16 ? 1 : 2;
  d.scale = softmax_scale(p);
  d.softcap = p.softcap;
  d.page_div = make_divisor(static_cast<std::uint32_t>(d.page_size));
  d.group_div = make_divisor(static_cast<std::uint32_t>(d.group));
  d.wide = keeps_wide_tokens(p.recipe) && t.cache.sequences != nullptr ? 1 : 0;
  d.recent = static_cast<std::int32_t>(std::min(recent_tokens(p), kMaxInt / 2));
  d.commit_div = make_divisor(static_cast<std::uint32_t>(commit_unit(p.recipe, p.page_size)));
  d.plain = p.head_dim == kernel_head_dim(shape.head_dim) && p.page_size % kTileKeys == 0 &&
            rows_side_by_side(d.k, p.recipe.k, p.head_dim) &&
            rows_side_by_side(d.v, p.recipe.v, p.head_dim);
  const cudaError_t e = launch_decode(shape, plan_decode(shape, plan.multiprocessors), d, workspace.data,
                                      static_cast<cudaStream_t>(t.stream));
  if (e == cudaSuccess) return {};
  return {StatusCode::internal, fmt::format("attend: CUDA refused the launch: {}", cudaGetErrorString(e))};
}

}  // namespace mpfa::sm90
