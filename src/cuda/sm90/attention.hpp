// Attention on sm_90 cards (H100, H200): which problems have a kernel, schedule and workspace, the call.
#pragma once

#include "mpfa/attention.hpp"

namespace mpfa::sm90 {

inline constexpr const char* kKernelName = "sm90_decode_fp4";

/// The kernel, or every reason why it does not take the problem; also when the current device is no sm_90.
[[nodiscard]] Support supports(const AttentionProblem& problem);
/// Fills workspace, split and multiprocessors of a plan whose problem is supported.
[[nodiscard]] Status plan(Plan& plan);
/// Enqueues the plan on tensors.stream. Tensors have passed check_device_tensors; the workspace is large enough.
[[nodiscard]] Status attend(const Plan& plan, const AttentionTensors& tensors, Workspace workspace);

}  // namespace mpfa::sm90
