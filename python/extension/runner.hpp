// One attention call as Python makes it: arguments to problem and tensors, the plan kept while nothing changes.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "extension/arrays.hpp"
#include "mpfa/attention.hpp"

namespace mpfa::python {

/// What a plan depends on beside recipe and head sizes.
struct PlanKey {
  std::int64_t batch = 1, max_q = 1, total_q = 0, max_kv = 0;
  DType q_dtype = DType::f32, out_dtype = DType::f32;
  float softmax_scale = 0.0F, softcap = 0.0F;
  bool causal = false, sinks = false, alibi = false;
  std::int64_t window_left = -1, window_right = -1;
  MaskTensor mask = MaskTensor::none;
  int threads = 0;
  bool operator==(const PlanKey&) const = default;
};

/// The options of every attention function of the module: the tuple that core_options of mpfa/arguments.py makes.
struct CallOptions {
  explicit CallOptions(const nb::tuple& options);
  float softmax_scale, softcap;
  bool causal;
  std::int64_t window_left, window_right;
  nb::object sinks, mask, alibi_slopes, cu_seqlens_q;
  int threads;
};

/// A call with its arrays imported; the vectors back the pointers of `tensors`.
struct Call {
  PlanKey key;
  AttentionTensors tensors;
  Array q, out;
  std::optional<Array> lse, mask;
  std::vector<float> sinks, alibi_slopes;
  std::optional<std::vector<std::int64_t>> cu_seqlens_q;
};

/// Imports q, out, lse (or None) and the options. The cache of call.tensors and key.max_kv are left to the caller.
void import_call(nb::handle q, nb::handle out, nb::handle lse, const CallOptions& options, std::int64_t q_heads,
                 Call& call);

/// Fails unless lse is float32 [batch, q_heads, rows] (ragged: [q_heads, rows]), contiguous.
void check_lse(const Array& lse, const Array& q, bool ragged, std::int64_t q_heads);

/// A mask [rows, keys] or [batch or 1, q_heads or 1, rows, keys], bool or float32, with four dimensions.
[[nodiscard]] Array import_mask(nb::handle x, Place place = Place::host);

/// Plans on demand and owns the workspace.
class Runner {
 public:
  /// Recipe, head sizes and page size of `fixed` stay for the life of the runner.
  explicit Runner(AttentionProblem fixed) : problem_(std::move(fixed)) {}
  /// Runs the call; needs no Python state, so the GIL may be released.
  [[nodiscard]] Status run(const PlanKey& key, const AttentionTensors& tensors);
  /// Checks the call without computing anything.
  [[nodiscard]] Status prepare(const PlanKey& key, const AttentionTensors& tensors);
  [[nodiscard]] const AttentionProblem& problem() const { return problem_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  [[nodiscard]] Status plan_for(const PlanKey& key);

  AttentionProblem problem_;
  PlanKey key_;
  std::optional<Plan> plan_;
  std::unique_ptr<void, Free> workspace_;
  std::size_t workspace_bytes_ = 0;
};

/// Power of two >= n (and >= 1024): a plan then serves a growing sequence for long.
[[nodiscard]] std::int64_t round_up_capacity(std::int64_t n);

}  // namespace mpfa::python
