// supports, plan, attend and merge behind the C ABI.
#include "capi/handles.hpp"

using mpfa::Status;
using mpfa::capi::check_struct;
using mpfa::capi::guarded;
using mpfa::capi::invalid;
using mpfa::capi::not_null;

namespace {

mpfa::Result<mpfa::AttentionTensors> to_tensors(const mpfa::Plan& plan, const mpfa_attend_args* args,
                                                std::vector<mpfa::SequenceView>& sequences) {
  constexpr const char* kCall = "mpfa_attend";
  const mpfa::AttentionProblem& problem = plan.problem;
  const bool on_gpu = plan.multiprocessors > 0;
  if (Status s = check_struct(kCall, "args", args); !s.ok()) return s;
  if ((args->cache == nullptr) == (args->view == nullptr)) {
    return invalid(fmt::format("{}: {} of args->cache and args->view are set; set exactly one", kCall,
                               args->cache == nullptr ? "none" : "both"));
  }
  if (on_gpu && args->cache != nullptr) {
    return invalid(
        fmt::format("{}: args->cache is in host memory and the plan is for a GPU ({}); set args->view, of "
                    "device memory",
                    kCall, plan.kernel));
  }
  const auto q = mpfa::capi::to_view(kCall, "q", args->q);
  if (!q.ok()) return q.status();
  const auto out = mpfa::capi::to_view(kCall, "out", args->out);
  if (!out.ok()) return out.status();
  const auto mask = mpfa::capi::to_view(kCall, "mask", args->mask);
  if (!mask.ok()) return mask.status();

  mpfa::AttentionTensors tensors;
  if (args->view != nullptr) {
    const auto view = mpfa::capi::to_cache_view(kCall, *args->view, on_gpu ? 0 : problem.batch, sequences);
    if (!view.ok()) return view.status();
    tensors.cache = view.value();
    if (on_gpu) tensors.cache.sequences = mpfa::capi::device_sequences(args->view->sequences);
  } else {
    const mpfa::CacheConfig& config = args->cache->cache.config();
    if (config.batch != problem.batch) {
      return invalid(fmt::format("{}: the cache has {} sequences, the plan has batch {}; they must be equal", kCall,
                                 config.batch, problem.batch));
    }
    if (config.recipe != problem.recipe) {
      return invalid(fmt::format("{}: the cache has recipe {}, the plan has {}; make the plan with the cache's recipe",
                                 kCall, mpfa::recipe_text(config.recipe), mpfa::recipe_text(problem.recipe)));
    }
    tensors.cache = args->cache->cache.view();
  }
  tensors.q = q.value();
  tensors.cu_seqlens_q = args->cu_seqlens_q;
  tensors.out = {args->out.data, out.value().dtype, out.value().shape, out.value().stride};
  tensors.lse = args->lse;
  tensors.sinks = args->sinks;
  tensors.alibi_slopes = args->alibi_slopes;
  tensors.mask = mask.value();
  tensors.stream = args->stream;
  return tensors;
}

std::string join(const std::vector<std::string>& reasons) {
  return fmt::format("{}", fmt::join(reasons, "\n"));
}

}  // namespace

extern "C" {

mpfa_tensor mpfa_contiguous(void* data, mpfa_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
  // Unsigned products: a hostile shape wraps here and is refused by the call that reads the tensor.
  const auto product = [](int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  };
  return {data, dtype, {n0, n1, n2, n3}, {product(product(n1, n2), n3), product(n2, n3), n3, 1}};
}

void mpfa_problem_init(mpfa_problem* problem, size_t struct_size) {
  mpfa_problem defaults{};
  defaults.batch = 1;
  defaults.max_q = 1;
  defaults.q_heads = 1;
  defaults.kv_heads = 1;
  defaults.page_size = 64;
  defaults.window_left = -1;
  defaults.window_right = -1;
  mpfa::capi::init_struct(problem, struct_size, defaults);
}

void mpfa_attend_args_init(mpfa_attend_args* args, size_t struct_size) {
  mpfa::capi::init_struct(args, struct_size, mpfa_attend_args{});
}

mpfa_status mpfa_supports(const mpfa_problem* problem, mpfa_device device, char* kernel, size_t kernel_bytes,
                          mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    const auto converted = mpfa::capi::to_problem("mpfa_supports", problem);
    if (!converted.ok()) return converted.status();
    const auto target = mpfa::capi::to_device("mpfa_supports", device);
    if (!target.ok()) return target.status();
    const mpfa::Support support = mpfa::supports(converted.value(), target.value());
    if (!support.supported()) return {mpfa::StatusCode::unsupported, join(support.reasons)};
    if (kernel != nullptr && kernel_bytes > 0) {
      const std::size_t n = support.kernel.copy(kernel, kernel_bytes - 1);
      kernel[n] = '\0';
    }
    return {};
  });
}

mpfa_status mpfa_plan_create(const mpfa_problem* problem, mpfa_device device, mpfa_plan** plan, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_plan_create", "plan", plan));
    *plan = nullptr;
    const auto converted = mpfa::capi::to_problem("mpfa_plan_create", problem);
    if (!converted.ok()) return converted.status();
    const auto target = mpfa::capi::to_device("mpfa_plan_create", device);
    if (!target.ok()) return target.status();
    auto made = mpfa::plan(converted.value(), target.value());
    if (!made.ok()) return made.status();
    *plan = new mpfa_plan{std::move(made).value()};
    return {};
  });
}

void mpfa_plan_destroy(mpfa_plan* plan) {
  delete plan;
}

size_t mpfa_plan_workspace_bytes(const mpfa_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.workspace_bytes;
}

const char* mpfa_plan_kernel(const mpfa_plan* plan) {
  return plan == nullptr ? "" : plan->plan.kernel.c_str();
}

mpfa_status mpfa_attend(const mpfa_plan* plan, const mpfa_attend_args* args, void* workspace, size_t workspace_bytes,
                        mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_attend", "plan", plan));
    std::vector<mpfa::SequenceView> sequences;
    const auto tensors = to_tensors(plan->plan, args, sequences);
    if (!tensors.ok()) return tensors.status();
    const auto executor = mpfa::capi::to_executor("mpfa_attend", args->executor);
    if (!executor.ok()) return executor.status();
    return mpfa::attend(plan->plan, tensors.value(), {workspace, workspace_bytes}, executor.value());
  });
}

mpfa_status mpfa_merge_states(int64_t rows, int64_t d, const float* o_a, const float* lse_a, const float* o_b,
                              const float* lse_b, float* o, float* lse, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_merge_states";
    if (rows < 0 || d < 1) return invalid(fmt::format("{}: rows {} and d {} must be >= 0 and >= 1", kCall, rows, d));
    if (rows == 0) return {};
    MPFA_RETURN_IF_ERROR(not_null(kCall, "o_a", o_a));
    MPFA_RETURN_IF_ERROR(not_null(kCall, "lse_a", lse_a));
    MPFA_RETURN_IF_ERROR(not_null(kCall, "o_b", o_b));
    MPFA_RETURN_IF_ERROR(not_null(kCall, "lse_b", lse_b));
    MPFA_RETURN_IF_ERROR(not_null(kCall, "o", o));
    MPFA_RETURN_IF_ERROR(not_null(kCall, "lse", lse));
    mpfa::merge_states(rows, d, o_a, lse_a, o_b, lse_b, o, lse);
    return {};
  });
}

}  // extern "C"
