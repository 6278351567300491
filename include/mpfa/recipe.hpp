// A recipe is data: which format each operand has, how P is made, what is centred, and the backward rule.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mpfa/formats.hpp"
#include "mpfa/status.hpp"

namespace mpfa {

/// How the (unnormalised) probabilities are rounded before P*V. p is relative to the running row maximum.
enum class PMode : std::uint8_t {
  f32,
  bf16,
  e4m3,                   // RN_e4m3(p * p_scale)
  e4m3_loglin,            // code = clamp(round(8 * log2(p * p_scale) + 56)): no exp2
  mxfp4,                  // blocks of 32 keys, least_error rule
  mxfp4_direct_fast,      // Direct-P (arXiv 2609.04105): the code is affine in log2 p
  mxfp4_direct_accurate,  // as above, every fourth key through exp2
  nvfp4,                  // blocks of 16 keys, one level
  nvfp4_two_level,        // row scale max/(448*6), then nvfp4 blocks (SageAttention3, arXiv 2505.11594)
  nvfp4_underflow,        // nvfp4 with scale amax/2 for blocks with amax <= 21/1024 (arXiv 2611.09825)
};

enum class Denominator : std::uint8_t { exact, same_codes };
enum class KeyOrder : std::uint8_t { forward, reverse };  // reverse: the last key block first, the sink last
/// Where a mean comes from: the first append of a sequence (then frozen), or calibrated by the caller.
enum class Centre : std::uint8_t { none, mean, fixed };
/// Mean of V per channel; page: of each full page, stored in the page (arXiv 2609.15810).
enum class VMean : std::uint8_t { none, mean, fixed, page };
enum class QCentre : std::uint8_t { none, mean, fixed, block };  // block: mean of 128 query rows of the call
/// dS[j] = a . K'[j], the rank-one term that centring Q asks for, and how it is stored.
enum class RankOne : std::uint8_t { off, bf16, split };        // split: bf16 hi + mid + lo, the same as fp32
enum class Rotate : std::uint8_t { none, qk, qkv };            // orthonormal Hadamard of the head dim, after centring
enum class QkProduct : std::uint8_t { wide, fp8, fp4, int8 };  // tensor-core operand type; wide = 16 bits
enum class BackwardRule : std::uint8_t { straight_through, direct_p, attn_qat, full_stack_fp4 };

struct Recipe {
  std::string name;  // the table's name, or "custom"
  BlockFormat q, k, v;
  QkProduct qk = QkProduct::wide;
  std::int32_t q_terms = 1;  // 2: q = q1 + q2, both in q's format

  PMode p = PMode::f32;
  float p_scale = 1.0F;  // power of two or 448, for e4m3
  Denominator denominator = Denominator::exact;
  KeyOrder order = KeyOrder::forward;

  Centre centre = Centre::none;  // K
  QCentre q_centre = QCentre::none;
  RankOne rank_one = RankOne::off;  // off with q_centre set: the term is left out (to show what it does)
  VMean v_mean = VMean::none;
  bool v_residual = false;  // V ~ alpha * Vhat + beta per head and channel, fitted on a first append of >= 64 tokens
  Rotate rotate = Rotate::none;

  std::int64_t sink = 0;      // first tokens kept in bf16
  std::int64_t recent = 0;    // newest tokens kept in bf16; recent_page = one page
  bool phase_switch = false;  // 16-bit until PagedCache::seal(), then quantised
  float logit_cap = 0.0F;     // > 0: scaled logits are clamped to +-cap, so that extreme blocks stay finite

  BackwardRule backward = BackwardRule::straight_through;
  bool operator==(const Recipe&) const = default;

  static constexpr std::int64_t recent_page = -1;
};

/// Names of the table, in the order of the documentation.
[[nodiscard]] const std::vector<std::string>& recipe_names();
/// One line: what the recipe is and where it comes from (arXiv number).
[[nodiscard]] std::string recipe_source(std::string_view name);

/// "mpfa", "mxfp4,centre=none" (a name, then overrides) or "k=nvfp4,v=fp8_e4m3,p=e4m3x256,centre=static,...".
/// The error names the field that is wrong and lists what it may be.
[[nodiscard]] Result<Recipe> parse_recipe(std::string_view text);
/// The shortest text that parses to the same recipe: a table name with its overrides, or all fields.
[[nodiscard]] std::string recipe_text(const Recipe& r);
/// ok, or which fields contradict each other (rank_one without q_centre, ...).
[[nodiscard]] Status check_recipe(const Recipe& r);

/// Tokens that become packed together: the larger of K's and V's block_keys, or a page with v_mean=page.
[[nodiscard]] std::int64_t commit_unit(const Recipe& r, std::int64_t page_size);
/// ok, or why V cannot be the first head_dim_v channels of K in the same bytes (latent attention): their formats
/// differ, V is centred, fitted or rotated apart from K, or reading fewer channels would read other values.
[[nodiscard]] Status check_shared_kv(const Recipe& r, std::int64_t head_dim, std::int64_t head_dim_v);

/// True when some tokens are kept in bf16 beside the packed pages (sink, recent, blocks along keys, v_mean=page, phase
/// switch).
[[nodiscard]] bool keeps_wide_tokens(const Recipe& r);

}  // namespace mpfa
