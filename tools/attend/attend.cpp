#include "attend/attend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <new>
#include <span>

#include "attend/errors.hpp"
#include "attend/inputs.hpp"
#include "cache/convert.hpp"
#include "io/safetensors.hpp"
#include "mpfa/mpfa.hpp"
#include "output.hpp"

namespace mpfa::cli {
namespace {

struct Outcome {
  std::string kernel;
  std::vector<float> out;  // [batch, sq, q_heads, head_dim_v]
  std::vector<float> lse;  // [batch, q_heads, sq]
  QuantiseCounters counters;
};

AttentionProblem describe(const AttendOptions& options, const Recipe& recipe, const Inputs& in) {
  AttentionProblem p;
  p.recipe = recipe;
  p.batch = in.q.view.shape[0];
  p.max_q = in.q.view.shape[1];
  p.max_kv = in.k.view.shape[1];
  p.q_heads = in.q.view.shape[2];
  p.kv_heads = in.k.view.shape[2];
  p.head_dim = in.k.view.shape[3];
  p.head_dim_v = in.v.view.shape[3];
  p.page_size = options.page_size;
  p.q_dtype = in.q.view.dtype;
  p.softmax_scale = options.scale;
  p.causal = options.causal;
  p.window_left = options.window_left;
  p.window_right = options.window_right;
  p.softcap = options.softcap;
  p.sinks = !in.sinks.empty();
  p.threads = options.threads;
  return p;
}

CacheConfig cache_config(const AttentionProblem& p, const Inputs& in) {
  CacheConfig c;
  c.recipe = p.recipe;
  c.batch = p.batch;
  c.num_pages = p.batch * ((p.max_kv + p.page_size - 1) / p.page_size);
  c.page_size = p.page_size;
  c.q_heads = p.q_heads;
  c.kv_heads = p.kv_heads;
  c.head_dim = p.head_dim;
  c.head_dim_v = p.head_dim_v;
  // A file may hold the means for other recipes too; the cache refuses those it has no use for.
  if (p.recipe.centre == Centre::fixed) c.k_mean = in.k_mean;
  if (p.recipe.q_centre == QCentre::fixed) c.q_mean = in.q_mean;
  if (p.recipe.v_mean == VMean::fixed) c.v_mean = in.v_mean;
  return c;
}

// A mean over the rows there are, repeated for every key: append takes one query row per token.
std::vector<float> mean_rows(const TensorView& q) {
  const std::int64_t width = q.shape[2] * q.shape[3];
  std::vector<float> means(static_cast<std::size_t>(q.shape[0] * width));
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t b = 0; b < q.shape[0]; ++b) {
    std::vector<double> sum(static_cast<std::size_t>(width));
    for (std::int64_t i = 0; i < q.shape[1]; ++i) {
      load_row(q.data, q.dtype, (b * q.shape[1] + i) * width, 1, width, row.data());
      for (std::int64_t c = 0; c < width; ++c) sum[c] += row[c];
    }
    const auto rows = static_cast<double>(q.shape[1]);
    for (std::int64_t c = 0; c < width; ++c) means[b * width + c] = static_cast<float>(sum[c] / rows);
  }
  return means;
}

Status append_all(const Inputs& in, PagedCache& cache) {
  const TensorView& q = in.q.view;
  if (q.shape[1] == in.k.view.shape[1]) return cache.append(in.k.view, in.v.view, &q, nullptr, nullptr);
  const std::vector<float> means = mean_rows(q);
  TensorView repeated = contiguous(means.data(), DType::f32, {q.shape[0], 1, q.shape[2], q.shape[3]});
  repeated.shape[1] = in.k.view.shape[1];
  repeated.stride[1] = 0;
  return cache.append(in.k.view, in.v.view, &repeated, nullptr, nullptr);
}

Result<Outcome> run(const AttentionProblem& problem, const Inputs& in) {
  const Result<Plan> planned = plan(problem, Device::cpu);
  if (!planned.ok()) return planned.status();
  Result<PagedCache> created = PagedCache::create(cache_config(problem, in));
  if (!created.ok()) return created.status();
  PagedCache& cache = created.value();
  MPFA_RETURN_IF_ERROR(append_all(in, cache));
  MPFA_RETURN_IF_ERROR(cache.seal());

  Outcome result;
  result.kernel = planned.value().kernel;
  const std::int64_t rows = problem.batch * problem.max_q * problem.q_heads;
  result.out.resize(static_cast<std::size_t>(rows * problem.head_dim_v));
  result.lse.resize(static_cast<std::size_t>(rows));
  AttentionTensors tensors;
  tensors.q = in.q.view;
  tensors.cache = cache.view();
  tensors.out = contiguous(static_cast<void*>(result.out.data()), DType::f32,
                           {problem.batch, problem.max_q, problem.q_heads, problem.head_dim_v});
  tensors.lse = result.lse.data();
  tensors.sinks = in.sinks.empty() ? nullptr : in.sinks.data();

  constexpr std::align_val_t kAlignment{64};
  const auto release = [](void* p) { ::operator delete(p, kAlignment); };
  const std::size_t bytes = planned.value().workspace_bytes;
  const std::unique_ptr<void, decltype(release)> scratch(::operator new(bytes, kAlignment), release);
  MPFA_RETURN_IF_ERROR(attend(planned.value(), tensors, {scratch.get(), bytes}));
  result.counters = cache.counters();
  return result;
}

Result<Errors> compare(const AttentionProblem& p, const Inputs& in, const Outcome& outcome) {
  AttentionTensors extras;
  extras.sinks = in.sinks.empty() ? nullptr : in.sinks.data();
  std::vector<double> exact_out, exact_lse;
  MPFA_RETURN_IF_ERROR(reference::exact(p, in.q.view, in.k.view, in.v.view, extras, exact_out, exact_lse));
  std::vector<float> lse(outcome.lse.size());  // [batch, sq, q_heads], as the reference has it
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      for (std::int64_t i = 0; i < p.max_q; ++i) {
        lse[(b * p.max_q + i) * p.q_heads + h] = outcome.lse[(b * p.q_heads + h) * p.max_q + i];
      }
    }
  }
  return measure(p.batch * p.max_q, p.q_heads, p.head_dim_v, outcome.out, exact_out, lse, exact_lse);
}

Status write_result(const std::string& path, const AttentionProblem& p, const Outcome& outcome) {
  using io::FileType;
  return io::write_safetensors(
      path,
      {{"out", FileType::f32, {p.batch, p.max_q, p.q_heads, p.head_dim_v}, std::as_bytes(std::span(outcome.out))},
       {"lse", FileType::f32, {p.batch, p.q_heads, p.max_q}, std::as_bytes(std::span(outcome.lse))}},
      {{"recipe", recipe_text(p.recipe)}, {"kernel", outcome.kernel}});
}

Json error_json(const Error& e) {
  return {{"relative_l2", e.relative_l2}, {"max_abs", e.max_abs}, {"cosine", e.cosine}};
}

std::string report(const AttendOptions& options, const AttentionProblem& p, const Outcome& outcome,
                   const Errors& errors) {
  const double bytes = bytes_per_token(p.recipe, p.q_heads, p.kv_heads, p.head_dim, p.head_dim_v, p.page_size);
  const double wide = 2.0 * static_cast<double>(p.kv_heads * (p.head_dim + p.head_dim_v));
  const QuantiseCounters& n = outcome.counters;
  if (options.json) {
    Json per_head = Json::array();
    for (const Error& e : errors.per_head) per_head.push_back(error_json(e));
    return json_text({{"recipe", recipe_text(p.recipe)},
                      {"kernel", outcome.kernel},
                      {"bytes_per_token", bytes},
                      {"bytes_per_token_bf16", wide},
                      {"out", error_json(errors.all)},
                      {"out_per_head", per_head},
                      {"lse_max_abs", errors.lse_max_abs},
                      {"counters",
                       {{"nonfinite_blocks", n.nonfinite_blocks},
                        {"saturated_elements", n.saturated_elements},
                        {"flushed_blocks", n.flushed_blocks}}}});
  }
  const auto worst = std::max_element(errors.per_head.begin(), errors.per_head.end(),
                                      [](const Error& a, const Error& b) { return a.relative_l2 < b.relative_l2; });
  return table_text({
      {"recipe", recipe_text(p.recipe)},
      {"kernel", outcome.kernel},
      {"bytes per token", fmt::format("{} (bf16: {}, {:.2f} times as many)", bytes, wide, wide / bytes)},
      {"error of out", fmt::format("relative L2 {:.4g}, max abs {:.4g}, cosine {:.6f}", errors.all.relative_l2,
                                   errors.all.max_abs, errors.all.cosine)},
      {"worst head", fmt::format("{}: relative L2 {:.4g}, max abs {:.4g}, cosine {:.6f}",
                                 worst - errors.per_head.begin(), worst->relative_l2, worst->max_abs, worst->cosine)},
      {"error of lse", fmt::format("max abs {:.4g}", errors.lse_max_abs)},
      {"counters", fmt::format("non-finite blocks {}, saturated elements {}, flushed blocks {}", n.nonfinite_blocks,
                               n.saturated_elements, n.flushed_blocks)},
  });
}

}  // namespace

Result<std::string> attend_report(const AttendOptions& options) {
  const Result<Recipe> recipe = parse_recipe(options.recipe);
  if (!recipe.ok()) return recipe.status();
  const Result<Inputs> inputs = read_inputs(options.file);
  if (!inputs.ok()) return inputs.status();
  const AttentionProblem problem = describe(options, recipe.value(), inputs.value());
  const Result<Outcome> outcome = run(problem, inputs.value());
  if (!outcome.ok()) return outcome.status();
  const Result<Errors> errors = compare(problem, inputs.value(), outcome.value());
  if (!errors.ok()) return errors.status();
  if (!options.out.empty()) MPFA_RETURN_IF_ERROR(write_result(options.out, problem, outcome.value()));
  return report(options, problem, outcome.value(), errors.value());
}

}  // namespace mpfa::cli
