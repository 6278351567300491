#include "cuda/sm90/support.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cuda/sm90/decode/config.h"

namespace mpfa::sm90 {
namespace {

constexpr std::int64_t kMostQueries = 16;
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

/// Whether the kernel of these operands rounds q as the recipe says: to the 8-bit format of K, or for recipe `mpfa` to
/// nvfp4.
bool rounds_q(const Recipe& r, const std::optional<OperandPair>& operands) {
  if (!operands || r.q_terms != 1 || r.q.axis != PackAxis::head_dim || r.q.block_keys != 1) return false;
  if (*operands == OperandPair{Operand::nvfp4, Operand::e4m3}) return is_fp4(r.q) && r.q.rule == ScaleRule::amax;
  const bool row = r.q.scale == ScaleType::f32 && r.q.block_channels == 0;
  return row && r.q.element == r.k.element && (r.q.element == Element::e4m3 || r.q.element == Element::int8);
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
  reasons.add_if(r.v_residual, "V has an affine residual; use v_residual=off");
  reasons.add_if(r.logit_cap > 0.0F, "logit_cap is set; use logit_cap=0");
}

/// Kernels are compiled for 64, 128 and 256; other head dims leave a part of one empty.
bool takes_head_dim(std::int64_t d) {
  return d >= 32 && d <= 256 && d % 16 == 0;
}

}  // namespace

bool is_fp4(const BlockFormat& f) {
  const bool mx = f.scale == ScaleType::e8m0 && f.block_channels == 32;
  const bool nv = f.scale == ScaleType::e4m3 && f.block_channels == 16;
  return f.element == Element::e2m1 && f.axis == PackAxis::head_dim && (mx || nv);
}

bool is_wide(Element e) {
  return e == Element::bf16 || e == Element::f16;
}

std::optional<OperandPair> operands_of(const Recipe& r) {
  const std::optional<Operand> key = operand_of(r.k), value = operand_of(r.v);
  if (!key || !value ||
      std::find(kOperandPairs.begin(), kOperandPairs.end(), OperandPair{*key, *value}) == kOperandPairs.end())
    return std::nullopt;
  return OperandPair{*key, *value};
}

Support supports(const AttentionProblem& p) {
  Reasons reasons;
  check_recipe_fields(p, reasons);
  reasons.add_if(p.head_dim != p.head_dim_v || !takes_head_dim(p.head_dim),
                 "head_dim is {} and head_dim_v {}; both must be the same multiple of 16 from 32 to 256", p.head_dim,
                 p.head_dim_v);
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
  std::vector<std::string> all = reasons.take();
  if (all.empty()) return {kKernelName, {}};
  return {"", std::move(all)};
}

}  // namespace mpfa::sm90
