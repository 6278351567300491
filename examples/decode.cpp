// Decode with a 4-bit KV cache: plan once, then append and attend one token at a time.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "mpfa/mpfa.hpp"

namespace {

constexpr std::int64_t kPrompt = 512, kSteps = 32, kQHeads = 8, kKvHeads = 2, kDim = 128, kPage = 64;

void check(const mpfa::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

std::vector<float> gaussian(std::mt19937& random, std::int64_t tokens, std::int64_t heads) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(tokens * heads * kDim));
  for (float& value : x) value = normal(random);
  return x;
}

mpfa::TensorView rows(const std::vector<float>& x, std::int64_t tokens, std::int64_t heads) {
  return mpfa::contiguous(x.data(), mpfa::DType::f32, {1, tokens, heads, kDim});
}

// Outputs [kSteps, kQHeads, kDim] with keys and values kept as the recipe says.
std::vector<float> decode(const char* recipe_name) {
  mpfa::Result<mpfa::Recipe> recipe = mpfa::parse_recipe(recipe_name);
  check(recipe.status());

  mpfa::CacheConfig config;
  config.recipe = recipe.value();
  config.num_pages = (kPrompt + kSteps + kPage - 1) / kPage;
  config.page_size = kPage;
  config.q_heads = kQHeads, config.kv_heads = kKvHeads;
  config.head_dim = config.head_dim_v = kDim;
  mpfa::Result<mpfa::PagedCache> cache = mpfa::PagedCache::create(config);
  check(cache.status());

  mpfa::AttentionProblem problem;
  problem.recipe = recipe.value();
  problem.max_kv = kPrompt + kSteps;
  problem.page_size = kPage;
  problem.q_heads = kQHeads, problem.kv_heads = kKvHeads;
  problem.head_dim = problem.head_dim_v = kDim;
  problem.causal = true;
  mpfa::Result<mpfa::Plan> plan = mpfa::plan(problem, mpfa::Device::cpu);
  check(plan.status());
  const std::size_t bytes = (plan.value().workspace_bytes + 63) / 64 * 64;
  const mpfa::Workspace workspace{std::aligned_alloc(64, bytes), bytes};

  std::mt19937 random(1);
  std::vector<float> out(kSteps * kQHeads * kDim);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::int64_t tokens = step == 0 ? kPrompt : 1;
    const std::vector<float> k = gaussian(random, tokens, kKvHeads), v = gaussian(random, tokens, kKvHeads);
    const std::vector<float> q = gaussian(random, 1, kQHeads);
    check(cache.value().append(rows(k, tokens, kKvHeads), rows(v, tokens, kKvHeads), nullptr, nullptr, nullptr));

    mpfa::AttentionTensors tensors;
    tensors.q = rows(q, 1, kQHeads);
    tensors.cache = cache.value().view();
    tensors.out = mpfa::contiguous(&out[step * kQHeads * kDim], mpfa::DType::f32, {1, 1, kQHeads, kDim});
    check(mpfa::attend(plan.value(), tensors, workspace));
  }
  std::free(workspace.data);
  const double size = mpfa::bytes_per_token(config.recipe, kQHeads, kKvHeads, kDim, kDim, kPage);
  std::printf("%-6s %6.0f bytes per token\n", recipe_name, size);
  return out;
}

}  // namespace

int main() {
  const std::vector<float> wide = decode("bf16"), packed = decode("mxfp4");
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    error += (packed[i] - wide[i]) * (packed[i] - wide[i]);
    norm += wide[i] * wide[i];
  }
  const double relative = std::sqrt(error / norm);
  std::printf("relative L2 error of mxfp4 against bf16: %.3f\n", relative);
  return relative < 0.25 ? 0 : 1;  // NaN fails too
}
