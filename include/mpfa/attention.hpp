// The attention call: describe the problem, ask whether a kernel takes it, plan, run.
//
//   out[i, h] = sum_j softmax_j(scale * q[i, h] . k[j, g] + ...) v[j, g],   g = h / (q_heads / kv_heads)
//
// Masks are bottom-right aligned: query row i of a sequence with sq rows and sk keys is at p = i + sk - sq.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mpfa/cache_view.hpp"
#include "mpfa/executor.hpp"
#include "mpfa/recipe.hpp"
#include "mpfa/status.hpp"
#include "mpfa/tensor.hpp"

namespace mpfa {

enum class MaskTensor : std::uint8_t { none, boolean, additive };

struct AttentionProblem {
  Recipe recipe;
  std::int64_t batch = 1;
  std::int64_t max_q = 1;    // most query rows of a sequence in one call
  std::int64_t total_q = 0;  // ragged: most query rows of all sequences together; 0: batch * max_q
  std::int64_t max_kv = 0;   // capacity: most keys of a sequence, now or later under the same plan
  std::int64_t q_heads = 1, kv_heads = 1;
  std::int64_t head_dim = 0, head_dim_v = 0;
  std::int64_t page_size = 64;
  DType q_dtype = DType::f32;    // f32, bf16, f16
  DType out_dtype = DType::f32;  // f32, bf16, f16

  float softmax_scale = 0.0F;      // 0: 1 / sqrt(head_dim)
  bool causal = false;             // row p sees keys j <= p
  std::int64_t window_left = -1;   // row p sees keys j >= p - window_left; -1: all
  std::int64_t window_right = -1;  // row p sees keys j <= p + window_right; -1: all
  float softcap = 0.0F;            // > 0: logit = softcap * tanh(logit / softcap), before masking
  bool sinks = false;              // one more logit per head in the denominator
  bool alibi = false;              // logit -= slope[h] * |p - j|
  MaskTensor mask = MaskTensor::none;
  int threads = 0;  // CPU: most threads of a call; 0: as many as the process may use
  // GPU: a row's bits do not depend on the rest of the batch, at the price of fixed splits (the CPU is always so).
  bool batch_invariant = false;
};

/// Pointers of one call. Inputs are never written.
/// Plans for a GPU: every pointer is device memory, also cu_seqlens_q, the page table, lengths and the array of
/// SequenceView with what it points to; lengths and page ids are read on the device when the call runs, so a captured
/// CUDA graph may be replayed with others. A length outside [0, max_kv] is limited to it, rows of a sequence that uses
/// a page id outside the pool become NaN. A mask has max_kv keys, for ragged q also max_q rows.
struct AttentionTensors {
  TensorView q;  // [batch, sq, q_heads, head_dim], or ragged [1, total_q, q_heads, head_dim]
  const std::int64_t* cu_seqlens_q = nullptr;  // [batch + 1] for ragged q, null for dense
  CacheView cache;
  MutableTensorView out;                // like q with head_dim_v
  float* lse = nullptr;                 // [batch, q_heads, sq] or ragged [q_heads, total_q]; natural log; may be null
  const float* sinks = nullptr;         // [q_heads], in units of the scaled logit
  const float* alibi_slopes = nullptr;  // [q_heads]
  TensorView mask;                      // [batch|1, q_heads|1, sq, sk]: u8 (0 = masked) or f32 (added; -inf = masked)
  void* stream = nullptr;               // GPU: the cudaStream_t to run on; null: the default stream
};

/// Caller-owned scratch, at least Plan::workspace_bytes, aligned to 64 bytes. Contents need not be set.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

enum class Device : std::uint8_t { cpu, sm90, sm100, sm120 };

/// The kernel of a problem, or the reasons why there is none.
struct Support {
  std::string kernel;                // empty when unsupported
  std::vector<std::string> reasons;  // each says what was given, what is allowed, what to do
  [[nodiscard]] bool supported() const { return !kernel.empty(); }
};
/// Whether this build has a kernel of `device` for the problem. A GPU need not be there: available() asks the machine.
[[nodiscard]] Support supports(const AttentionProblem& problem, Device device);
/// ok when plans for `device` can be made now: the build has its kernels and the current CUDA device is of this kind.
[[nodiscard]] Status available(Device device);
/// The kind of the current CUDA device, by compute capability; unsupported: none, or one without kernels.
[[nodiscard]] Result<Device> cuda_device();

struct Plan {
  AttentionProblem problem;
  std::string kernel;
  std::size_t workspace_bytes = 0;
  // Keys of a sequence with few rows are split at multiples of it, or of a multiple of it where that makes more than 32
  // splits: by its own length alone, so that rows do not depend on batch mates.
  std::int64_t split_keys = 0;
  int threads = 1;          // CPU
  int multiprocessors = 0;  // GPU: of the device that was current when the plan was made
};

/// Checks the problem and fixes schedule and workspace; valid for any length up to max_kv. unsupported: supports() or
/// available() says why. A plan for a GPU is for the device that is current.
[[nodiscard]] Result<Plan> plan(const AttentionProblem& problem, Device device);
/// Runs the plan. Checks every pointer, shape, length and page id before anything is written. Calls may run at the same
/// time with workspaces and outputs of their own. On a GPU the call enqueues its work and returns: it allocates
/// nothing, does not wait, and checks what the host can see: every pointer must be memory of the current device, which
/// is the one of the plan and of the stream.
[[nodiscard]] Status attend(const Plan& plan, const AttentionTensors& tensors, Workspace workspace,
                            const Executor& executor = {});

/// Checks the problem alone (shapes, dtypes, recipe against head dims and page size), device-independent.
[[nodiscard]] Status check_problem(const AttentionProblem& problem);
/// Checks the tensors of a call against the problem: pointers, shapes, strides, lengths, page ids.
[[nodiscard]] Status check_tensors(const AttentionProblem& problem, const AttentionTensors& tensors);

/// Which keys query row i of a sequence sees, before a mask tensor: [begin, end), empty when begin >= end.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};
[[nodiscard]] constexpr KeyRange visible_keys(const AttentionProblem& p, std::int64_t i, std::int64_t sq,
                                              std::int64_t sk) {
  const std::int64_t pos = i + sk - sq;
  KeyRange r{0, sk};
  if (p.causal && pos + 1 < r.end) r.end = pos + 1;
  if (p.window_right >= 0 && pos + p.window_right + 1 < r.end) r.end = pos + p.window_right + 1;
  if (p.window_left >= 0 && pos - p.window_left > r.begin) r.begin = pos - p.window_left;
  return r;
}

/// Keys of one tile of the online softmax: P is rounded relative to the running maximum after each tile, so
/// reference and kernels share it. Tiles start at multiples of it.
inline constexpr std::int64_t kKeyTile = 64;

/// (Oa, La) + (Ob, Lb) over disjoint keys. Rows of n floats; -inf is the identity, both -inf gives (0, -inf).
/// out may alias a or b. Shapes: o [rows, d], lse [rows].
void merge_states(std::int64_t rows, std::int64_t d, const float* o_a, const float* lse_a, const float* o_b,
                  const float* lse_b, float* o, float* lse);

}  // namespace mpfa
