#include <fmt/format.h>

#include <cstdint>
#include <new>

#include "attention/check.hpp"
#include "attention/names.hpp"
#include "cpu/kernel.hpp"
#ifdef MPFA_HAVE_CUDA
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/support.hpp"
#endif
#include "mpfa/attention.hpp"
#include "text/heap_full.hpp"
#include "threads/run_tasks.hpp"

namespace mpfa {
namespace {

constexpr std::uintptr_t kWorkspaceAlignment = 64;

Status check_workspace(const Plan& plan, Workspace w) {
  if (plan.workspace_bytes == 0) return {};
  if (w.data == nullptr || w.bytes < plan.workspace_bytes) {
    return {StatusCode::invalid_argument,
            fmt::format("attend: the workspace has {} bytes, the plan needs {}; pass Plan::workspace_bytes bytes",
                        w.data == nullptr ? 0 : w.bytes, plan.workspace_bytes)};
  }
  const std::uintptr_t off = reinterpret_cast<std::uintptr_t>(w.data) % kWorkspaceAlignment;
  if (off == 0) return {};
  return {StatusCode::invalid_argument,
          fmt::format("attend: the workspace starts {} bytes past a multiple of {}; align it to {} bytes", off,
                      kWorkspaceAlignment, kWorkspaceAlignment)};
}

}  // namespace

Result<Plan> plan(const AttentionProblem& problem, Device device) try {
  MPFA_RETURN_IF_ERROR(check_problem(problem));
  const Support support = supports(problem, device);
  if (!support.supported()) {
    std::string reasons = "plan: no kernel takes this problem";
    for (const std::string& reason : support.reasons) reasons += ": " + reason;
    return Status{StatusCode::unsupported, std::move(reasons)};
  }
  Plan p;
  p.problem = problem;
  p.kernel = support.kernel;
#ifdef MPFA_HAVE_CUDA
  if (device == Device::sm90) {
    MPFA_RETURN_IF_ERROR(sm90::plan(p));
    return p;
  }
#endif
  p.threads = threads::resolve_threads(problem.threads);
  p.split_keys = cpu::kSplitKeys;
  p.workspace_bytes = cpu::workspace_bytes(problem, p.threads, p.split_keys);
  return p;
} catch (const std::bad_alloc&) {
  return heap_full("plan");
}

Status attend(const Plan& plan, const AttentionTensors& tensors, Workspace workspace, const Executor& executor) try {
#ifdef MPFA_HAVE_CUDA
  if (plan.kernel == sm90::kKernelName) {
    MPFA_RETURN_IF_ERROR(check_device_tensors(plan.problem, tensors));
    MPFA_RETURN_IF_ERROR(check_workspace(plan, workspace));
    return sm90::attend(plan, tensors, workspace);
  }
#endif
  if (plan.kernel != "cpu_tiled") {
    return {StatusCode::invalid_argument,
            fmt::format("attend: the plan names kernel '{}'; use a Plan that plan() returned", plan.kernel)};
  }
  MPFA_RETURN_IF_ERROR(check_tensors(plan.problem, tensors));
  MPFA_RETURN_IF_ERROR(check_workspace(plan, workspace));
  return cpu::attend(plan, tensors, workspace, executor);
} catch (const std::bad_alloc&) {
  return heap_full("attend");
}

}  // namespace mpfa
