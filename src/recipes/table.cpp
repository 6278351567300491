#include "recipes/table.hpp"

#include <algorithm>
#include <array>

#include "mpfa/recipe.hpp"

namespace mpfa {
namespace {

// Fields that follow from others (the type of QK^T, the denominator of 4-bit P) are left to the parser.
constexpr auto kRows = std::to_array<RecipeRow>({
    {"bf16", "p=bf16", "baseline: every operand in 16 bits"},
    {"fp8", "q=fp8_e4m3,kv=fp8_e4m3,p=e4m3x256",
     "FlashAttention-3 (arXiv 2407.08608) with one scale per token and head"},
    {"fp8_loglin", "q=fp8_e4m3,kv=fp8_e4m3,p=e4m3_loglin",
     "this library: fp8 whose codes of P are affine in the logit, so no exp2 is needed"},
    {"int8", "q=int8,kv=int8,p=bf16",
     "baseline: INT8 with one scale per token and head, as in LLM.int8() (arXiv 2208.07339)"},
    {"int4", "kv=int4_g64,p=bf16,centre=mean",
     "baseline: INT4 in groups of 64 channels as serving engines ship it, with K centred (arXiv 2411.10958)"},
    {"nvfp4", "kv=nvfp4,p=bf16,centre=mean", "serving default: 4.5-bit NVFP4 cache (arXiv 2509.25149), K centred"},
    {"nvfp4_4over6", "kv=nvfp4_4over6,p=bf16,centre=mean",
     "Four Over Six (arXiv 2512.02010): NVFP4 whose blocks choose between two scales, K centred"},
    {"mxfp4", "kv=mxfp4,p=bf16,centre=mean",
     "serving default: 4.25-bit MXFP4 cache with the scale of least mean error (arXiv 2607.24377), K centred"},
    {"mxfp4_ocp", "kv=mxfp4_ocp,p=bf16,centre=mean",
     "MXFP4 cache with the scale of OCP MX v1.0 (arXiv 2310.10537), K centred"},
    {"mxattention", "kv=mxfp4_f32,p=f32,phase_switch=on,logit_cap=65536",
     "MxAttention (an article without arXiv number): prefill in 16 bits, decode on MXFP4 with fp32 scales"},
    {"mxattention_uos", "q=mxfp4,kv=mxfp4,p=mxfp4,rotate=qkv",
     "MXFP4 in every operand with unbiased scales and a Hadamard rotation (arXiv 2607.24377)"},
    {"mpfa", "q=nvfp4,k=nvfp4,v=fp8_e4m3,p=e4m3x448,order=reverse,centre=mean,q_centre=mean,rank_one=bf16",
     "MpFA (arXiv 2609.33135): FP4 scores with a rank-one correction, FP8 values"},
    {"mpfa_static",
     "q=nvfp4,k=nvfp4_4over6,v=fp8_e4m3,p=e4m3x256,order=reverse,centre=static,q_centre=static,rank_one=split",
     "this library: MpFA (arXiv 2609.33135) with calibrated means and the whole rank-one term"},
    {"direct_p_fast", "q=nvfp4,k=nvfp4,v=mxfp4@keys,p=mxfp4_direct_fast,centre=mean,backward=direct_p",
     "Direct-P (arXiv 2609.04105): the FP4 code of P is affine in the logit"},
    {"direct_p_accurate", "q=nvfp4,k=nvfp4,v=mxfp4@keys,p=mxfp4_direct_accurate,centre=mean,backward=direct_p",
     "Direct-P (arXiv 2609.04105) with a quarter of the entries through exp2"},
    {"sage3", "q=nvfp4,k=nvfp4,v=nvfp4@keys,p=nvfp4_two_level,centre=mean,q_centre=block",
     "SageAttention3 (arXiv 2505.11594): NVFP4 in every operand, two-level P"},
    {"sage2", "q=int8_tile64,k=int8_tile64,v=fp8_e4m3@keys,p=e4m3x448,centre=mean",
     "SageAttention2 (arXiv 2411.10958) with INT8 scores and FP8 values"},
    {"sage2_int4", "q=int4_tile64,k=int4_tile64,v=fp8_e4m3@keys,p=e4m3x448,centre=mean,q_centre=block",
     "SageAttention2 (arXiv 2411.10958) with INT4 scores, so that Q is centred as well"},
    {"int4_int8", "q=int4_tile16,k=int4_tile16,v=int8,p=f32,v_residual=on,centre=mean",
     "an article without arXiv number: INT4 tiles for the scores, INT8 values with an affine residual"},
    {"bitdecoding_nvfp4",
     "q=nvfp4,q_terms=2,k=nvfp4_4over6,v=nvfp4@keys,p=nvfp4_underflow,centre=mean,rotate=qk,sink=16,recent=page",
     "BitDecoding with FP4 tensor cores (arXiv 2611.09825), NVFP4"},
    {"bitdecoding_mxfp4", "q=mxfp4,q_terms=2,k=mxfp4,v=mxfp4@keys,p=mxfp4,centre=mean,rotate=qk,sink=16,recent=page",
     "BitDecoding with FP4 tensor cores (arXiv 2611.09825), MXFP4"},
    {"turboquant_4bit", "k=lloyd4,v=int4_asym,p=bf16,rotate=qk",
     "TurboQuant (arXiv 2504.19874) as serving engines ship it: Lloyd-Max K, asymmetric INT4 V"},
    {"full_stack_fp4", "q=nvfp4,k=nvfp4,p=bf16,backward=full_stack_fp4",
     "full-stack FP4 training (arXiv 2607.04422): FP4 scores, the rest in 16 bits"},
    {"attn_qat", "q=nvfp4,k=nvfp4,v=nvfp4@keys,p=nvfp4,backward=attn_qat",
     "quantisation-aware training of attention (arXiv 2603.00040)"},
});

}  // namespace

std::span<const RecipeRow> recipe_rows() {
  return kRows;
}

const RecipeRow* find_recipe_row(std::string_view name) {
  const auto* const row = std::find_if(kRows.begin(), kRows.end(), [&](const RecipeRow& r) { return r.name == name; });
  return row == kRows.end() ? nullptr : row;
}

const std::vector<std::string>& recipe_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    all.reserve(kRows.size());
    for (const RecipeRow& row : kRows) all.emplace_back(row.name);
    return all;
  }();
  return names;
}

std::string recipe_source(std::string_view name) {
  const RecipeRow* const row = find_recipe_row(name);
  return row == nullptr ? std::string() : std::string(row->source);
}

}  // namespace mpfa
