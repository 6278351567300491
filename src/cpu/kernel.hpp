// The CPU kernel "cpu_tiled": online softmax over key tiles read from the packed cache, one tile expanded at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mpfa/attention.hpp"

namespace mpfa::cpu {

/// Keys of one split when a sequence has few query rows. A constant, so that a row's bits do not depend on its batch
/// mates or on the number of threads.
inline constexpr std::int64_t kSplitKeys = 4096;

[[nodiscard]] Support supports(const AttentionProblem& problem);
[[nodiscard]] std::size_t workspace_bytes(const AttentionProblem& problem, int threads, std::int64_t split_keys);
/// Tensors have passed check_tensors; the workspace is large enough and aligned to 64 bytes.
[[nodiscard]] Status attend(const Plan& plan, const AttentionTensors& tensors, Workspace workspace,
                            const Executor& executor);

}  // namespace mpfa::cpu
