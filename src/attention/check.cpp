#include "attention/check.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "attention/names.hpp"
#include "cache/hadamard.hpp"
#include "mpfa/attention.hpp"

namespace mpfa {
namespace {

constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxHeads = 65536;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMaxKeys = std::int64_t{1} << 54;  // of a call: the sizes of a workspace stay inside 64 bits

Status check_extent(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid("{} is {}; it must be in [{}, {}]", name, value, low, high);
}

/// A float option that is off at 0 and has no meaning below.
Status check_non_negative(const char* name, float value, const char* zero_means) {
  if (std::isfinite(value) && value >= 0.0F) return {};
  return invalid("{} is {}; it must be finite and >= 0 (0: {})", name, value, zero_means);
}

Status check_window(const char* name, std::int64_t value) {
  if (value >= -1 && value <= kMaxTokens) return {};
  return invalid("{} is {}; give -1 for no limit or a number of keys in [0, {}]", name, value, kMaxTokens);
}

Status check_float_dtype(const char* name, DType t) {
  if (t == DType::f32 || t == DType::bf16 || t == DType::f16) return {};
  return invalid("{} is {}; it must be f32, bf16 or f16", name, dtype_name(t));
}

Status check_cache_format(const char* operand, const BlockFormat& f, std::int64_t head_dim, std::int64_t page_size) {
  const Status s = check_format(f, head_dim, page_size);
  if (s.ok()) return {};
  return {s.code(), fmt::format("attend: {} cannot be held in the format of {}: {}", operand, operand, s.message())};
}

Status check_rotation(const char* name, std::int64_t d) {
  if (hadamard_block(d) >= 2) return {};
  return invalid("{} is {}, and rotate needs an even head dim; pad to {} or use rotate=none", name, d, d + 1);
}

Status check_sizes(const AttentionProblem& p) {
  MPFA_RETURN_IF_ERROR(check_extent("batch", p.batch, 0, std::int64_t{1} << 31));
  MPFA_RETURN_IF_ERROR(check_extent("max_q", p.max_q, 0, kMaxTokens));
  MPFA_RETURN_IF_ERROR(check_extent("total_q", p.total_q, 0, kMaxTokens));
  MPFA_RETURN_IF_ERROR(check_extent("max_kv", p.max_kv, 0, kMaxTokens));
  MPFA_RETURN_IF_ERROR(check_extent("q_heads", p.q_heads, 1, kMaxHeads));
  MPFA_RETURN_IF_ERROR(check_extent("kv_heads", p.kv_heads, 1, kMaxHeads));
  MPFA_RETURN_IF_ERROR(check_extent("head_dim", p.head_dim, 1, kMaxHeadDim));
  MPFA_RETURN_IF_ERROR(check_extent("head_dim_v", p.head_dim_v, 1, kMaxHeadDim));
  MPFA_RETURN_IF_ERROR(check_extent("page_size", p.page_size, 1, std::numeric_limits<std::int32_t>::max()));
  MPFA_RETURN_IF_ERROR(check_extent("threads", p.threads, 0, 4096));
  if (p.q_heads % p.kv_heads != 0) {
    return invalid(
        "q_heads {} is not a multiple of kv_heads {}; each KV head must serve the same number of query heads",
        p.q_heads, p.kv_heads);
  }
  std::int64_t elements = 0;
  const std::int64_t rows = p.total_q > 0 ? p.total_q : p.max_q;
  if (__builtin_mul_overflow(p.total_q > 0 ? p.q_heads : p.batch * p.q_heads, rows, &elements) ||
      __builtin_mul_overflow(elements, kMaxHeadDim * 8, &elements)) {
    return invalid("batch {} x max_q {} x q_heads {} overflows 64-bit addresses; split the call", p.batch, p.max_q,
                   p.q_heads);
  }
  if (__builtin_mul_overflow(p.batch * p.kv_heads, p.max_kv, &elements) || elements > kMaxKeys) {
    return invalid("batch {} x kv_heads {} x max_kv {} is more than {} keys; split the call", p.batch, p.kv_heads,
                   p.max_kv, kMaxKeys);
  }
  return {};
}

}  // namespace

Status check_problem(const AttentionProblem& p) {
  MPFA_RETURN_IF_ERROR(check_recipe(p.recipe));
  MPFA_RETURN_IF_ERROR(check_sizes(p));
  MPFA_RETURN_IF_ERROR(check_cache_format("K", p.recipe.k, p.head_dim, p.page_size));
  MPFA_RETURN_IF_ERROR(check_cache_format("V", p.recipe.v, p.head_dim_v, p.page_size));
  // Q has no pages: its key blocks are rows of the call, and a last partial one is allowed.
  MPFA_RETURN_IF_ERROR(check_cache_format("Q", p.recipe.q, p.head_dim, p.recipe.q.block_keys));
  if (p.recipe.rotate != Rotate::none) MPFA_RETURN_IF_ERROR(check_rotation("head_dim", p.head_dim));
  if (p.recipe.rotate == Rotate::qkv) MPFA_RETURN_IF_ERROR(check_rotation("head_dim_v", p.head_dim_v));

  MPFA_RETURN_IF_ERROR(check_float_dtype("q_dtype", p.q_dtype));
  MPFA_RETURN_IF_ERROR(check_float_dtype("out_dtype", p.out_dtype));
  MPFA_RETURN_IF_ERROR(check_non_negative("softmax_scale", p.softmax_scale, "1 / sqrt(head_dim)"));
  MPFA_RETURN_IF_ERROR(check_non_negative("softcap", p.softcap, "off"));
  MPFA_RETURN_IF_ERROR(check_window("window_left", p.window_left));
  MPFA_RETURN_IF_ERROR(check_window("window_right", p.window_right));

  const std::int64_t unit = commit_unit(p.recipe, p.page_size);
  if (unit > 1 && p.mask != MaskTensor::none) {
    // Which keys share a block with a masked one would decide what an unmasked one is worth.
    return {
        StatusCode::unsupported,
        fmt::format(
            "attend: recipe {} quantises {} keys together and does not take a mask tensor (a masked key "
            "would change visible ones); use causal/window, or a recipe with K and V blocks along head_dim and without "
            "v_mean=page",
            p.recipe.name, unit)};
  }
  return {};
}

}  // namespace mpfa
