// Which problems the sm_90 kernels take. Host code without CUDA headers: builds without the kernels have it too.
#pragma once

#include <optional>

#include "cuda/sm90/decode/operand.h"
#include "mpfa/attention.hpp"

namespace mpfa::sm90 {

inline constexpr const char* kKernelName = "sm90_decode";
inline constexpr std::int64_t kFixedSplitKeys = 2048;  // batch_invariant

/// The kernel, or every reason why it does not take the problem: the same answer in every build and on every machine.
[[nodiscard]] Support supports(const AttentionProblem& problem);

/// mxfp4 or nvfp4 along the head dim, any scale rule.
[[nodiscard]] bool is_fp4(const BlockFormat& f);
/// An element of 16 bits.
[[nodiscard]] bool is_wide(Element e);
/// How the decode kernel reads K and V of a recipe, when it does.
[[nodiscard]] std::optional<OperandPair> operands_of(const Recipe& recipe);

}  // namespace mpfa::sm90
