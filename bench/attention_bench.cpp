// Decode, prefill and append on the CPU, by recipe: the C++ call alone, to compare two builds or to run under a
// profiler. bytes_per_second is packed cache read (decode) or written (append).
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "mpfa/mpfa.hpp"

namespace {

constexpr std::int64_t kQHeads = 32, kKvHeads = 8, kDim = 128, kPage = 64;

std::vector<float> gaussian(std::int64_t tokens, std::int64_t heads) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(tokens * heads * kDim));
  for (float& value : x) value = normal(random);
  return x;
}

mpfa::TensorView rows(const std::vector<float>& x, std::int64_t tokens, std::int64_t heads) {
  return mpfa::contiguous(x.data(), mpfa::DType::f32, {1, tokens, heads, kDim});
}

mpfa::Recipe recipe_named(const std::string& name) {
  return mpfa::parse_recipe(name).value();
}

double packed_bytes(const mpfa::Recipe& recipe) {
  return mpfa::bytes_per_token(recipe, kQHeads, kKvHeads, kDim, kDim, kPage);
}

mpfa::PagedCache make_cache(const mpfa::Recipe& recipe, std::int64_t tokens) {
  mpfa::CacheConfig config;
  config.recipe = recipe;
  config.num_pages = (tokens + kPage - 1) / kPage;
  config.page_size = kPage;
  config.q_heads = kQHeads, config.kv_heads = kKvHeads;
  config.head_dim = config.head_dim_v = kDim;
  return std::move(mpfa::PagedCache::create(config)).value();
}

mpfa::Status fill(mpfa::PagedCache& cache, std::int64_t tokens) {
  const std::vector<float> k = gaussian(tokens, kKvHeads), q = gaussian(tokens, kQHeads);
  const mpfa::TensorView q_view = rows(q, tokens, kQHeads);
  return cache.append(rows(k, tokens, kKvHeads), rows(k, tokens, kKvHeads), &q_view, nullptr, nullptr);
}

void run_attend(benchmark::State& state, const std::string& name, std::int64_t query_rows) {
  const mpfa::Recipe recipe = recipe_named(name);
  const std::int64_t keys = state.range(0);
  mpfa::PagedCache cache = make_cache(recipe, keys);
  if (const mpfa::Status s = fill(cache, keys); !s.ok()) return state.SkipWithError(s.message().c_str());

  mpfa::AttentionProblem problem;
  problem.recipe = recipe;
  problem.max_q = query_rows, problem.max_kv = keys;
  problem.q_heads = kQHeads, problem.kv_heads = kKvHeads;
  problem.head_dim = problem.head_dim_v = kDim;
  problem.page_size = kPage;
  problem.causal = true;
  const mpfa::Plan plan = mpfa::plan(problem, mpfa::Device::cpu).value();
  const std::size_t bytes = (plan.workspace_bytes + 63) / 64 * 64;
  const std::unique_ptr<void, decltype(&std::free)> scratch(std::aligned_alloc(64, bytes), &std::free);

  const std::vector<float> q = gaussian(query_rows, kQHeads);
  std::vector<float> out(q.size());
  mpfa::AttentionTensors tensors;
  tensors.q = rows(q, query_rows, kQHeads);
  tensors.cache = cache.view();
  tensors.out = mpfa::contiguous(out.data(), mpfa::DType::f32, {1, query_rows, kQHeads, kDim});
  for (auto step : state) {
    if (const mpfa::Status s = mpfa::attend(plan, tensors, {scratch.get(), bytes}); !s.ok()) {
      return state.SkipWithError(s.message().c_str());
    }
  }
  state.SetItemsProcessed(state.iterations() * query_rows);
  if (query_rows == 1) {
    state.SetBytesProcessed(
        static_cast<std::int64_t>(static_cast<double>(state.iterations() * keys) * packed_bytes(recipe)));
  }
}

void run_append(benchmark::State& state, const std::string& name) {
  const mpfa::Recipe recipe = recipe_named(name);
  const std::int64_t tokens = state.range(0);
  mpfa::PagedCache cache = make_cache(recipe, tokens);
  const std::vector<float> k = gaussian(tokens, kKvHeads), q = gaussian(tokens, kQHeads);
  const mpfa::TensorView k_view = rows(k, tokens, kKvHeads), q_view = rows(q, tokens, kQHeads);
  for (auto step : state) {
    mpfa::Status s = cache.append(k_view, k_view, &q_view, nullptr, nullptr);
    if (s.ok()) s = cache.free_sequence(0);
    if (!s.ok()) return state.SkipWithError(s.message().c_str());
  }
  state.SetItemsProcessed(state.iterations() * tokens);
  state.SetBytesProcessed(
      static_cast<std::int64_t>(static_cast<double>(state.iterations() * tokens) * packed_bytes(recipe)));
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const std::string name : {"bf16", "fp8", "int8", "mxfp4", "nvfp4", "mpfa", "sage3"}) {
    benchmark::RegisterBenchmark(fmt::format("decode/{}", name).c_str(), run_attend, name, 1)
        ->Arg(1024)
        ->Arg(8192)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(fmt::format("prefill/{}", name).c_str(), run_attend, name, 512)
        ->Arg(2048)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(fmt::format("append/{}", name).c_str(), run_append, name)
        ->Arg(512)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
