// Attention on sm_90 cards (H100, H200): schedule and workspace, the call. support.hpp says which problems it takes.
#pragma once

#include "mpfa/attention.hpp"

namespace mpfa::sm90 {

/// Fills workspace, split and multiprocessors of a plan whose problem is supported, or says why this machine has no
/// card for it.
[[nodiscard]] Status plan(Plan& plan);
/// Enqueues the plan on tensors.stream. Tensors have passed check_device_tensors; the workspace is large enough. Memory
/// of the host or of another device is refused.
[[nodiscard]] Status attend(const Plan& plan, const AttentionTensors& tensors, Workspace workspace);

}  // namespace mpfa::sm90
