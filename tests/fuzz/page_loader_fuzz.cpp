// Saved sequences: any bytes, and real blobs with changes and a checksum that fits them again. A blob is refused with
// a message and nothing changed, or it is a sequence that can be read, continued and saved.
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "cache/blob.hpp"
#include "mpfa/mpfa.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using mpfa::fuzz::Input;
using mpfa::fuzz::number;
using mpfa::fuzz::require;

constexpr std::int64_t kHeads = 2, kDim = 32, kPage = 32, kPages = 6;
constexpr const char* kRecipes[] = {"mxfp4,centre=none",
                                    "k=nvfp4,v=nvfp4@keys,p=bf16,sink=3,recent=page",
                                    "mpfa",
                                    "mxfp4,centre=none,phase_switch=on,recent=5",
                                    "k=int8_tile16,v=int4_asym,p=f32,v_residual=on",
                                    "turboquant_4bit"};

mpfa::Status append(mpfa::PagedCache& cache, std::int32_t sequence, std::int64_t n, std::uint64_t seed) {
  std::vector<float> x(static_cast<std::size_t>(n * kHeads * kDim));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = number(seed, i);
  const mpfa::TensorView view =
      mpfa::contiguous(static_cast<const void*>(x.data()), mpfa::DType::f32, {1, n, kHeads, kDim});
  return cache.append(view, view, &view, &sequence, nullptr);
}

mpfa::PagedCache make_cache(const char* recipe) {
  mpfa::CacheConfig c;
  c.recipe = mpfa::parse_recipe(recipe).value();
  c.batch = 2;
  c.num_pages = kPages;
  c.page_size = kPage;
  c.q_heads = c.kv_heads = kHeads;
  c.head_dim = c.head_dim_v = kDim;
  c.threads = 1;
  mpfa::PagedCache cache = mpfa::PagedCache::create(c).value();
  std::memset(cache.storage(), 0xFF, static_cast<std::size_t>(cache.storage_bytes()));
  return cache;
}

std::vector<std::byte> saved(const mpfa::PagedCache& cache, std::int64_t sequence) {
  std::vector<std::byte> blob;
  require(cache.save(blob, sequence).ok(), "a sequence could not be saved");
  return blob;
}

/// Numbers may be anything; the call must end and stay inside its memory.
void attend(const mpfa::PagedCache& cache) {
  mpfa::AttentionProblem p;
  p.recipe = cache.config().recipe;
  p.batch = 2;
  p.max_kv = kPages * kPage;
  p.q_heads = p.kv_heads = kHeads;
  p.head_dim = p.head_dim_v = kDim;
  p.page_size = kPage;
  p.causal = true;
  p.threads = 1;
  const mpfa::Plan plan = mpfa::plan(p, mpfa::Device::cpu).value();
  std::vector<float> q(2 * kHeads * kDim, 0.5F), out(q.size());
  std::vector<std::byte> scratch(plan.workspace_bytes + 64);
  const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64;
  mpfa::AttentionTensors t;
  t.q = mpfa::contiguous(static_cast<const void*>(q.data()), mpfa::DType::f32, {2, 1, kHeads, kDim});
  t.out = mpfa::contiguous(static_cast<void*>(out.data()), mpfa::DType::f32, {2, 1, kHeads, kDim});
  t.cache = cache.view();
  const mpfa::Status s = mpfa::attend(plan, t, {scratch.data() + skip, plan.workspace_bytes});
  require(s.ok(), "a loaded sequence could not be read");
}

/// Bytes of the input as they are, or as changes of a real blob.
std::vector<std::byte> blob_of(Input& in, const char* recipe) {
  std::vector<std::byte> blob;
  if (in.bits(1) % 8 == 7) {
    while (in.left() > 0) blob.push_back(static_cast<std::byte>(in.bits(1)));
    return blob;
  }
  mpfa::PagedCache cache = make_cache(recipe);
  require(append(cache, 0, in.between(1, 70), 1).ok(), "append failed");
  if (in.coin()) require(cache.seal().ok(), "seal failed");
  if (in.coin()) require(append(cache, 0, in.between(1, 40), 2).ok(), "append failed");
  blob = saved(cache, 0);
  for (std::int64_t edits = in.between(0, 6); edits > 0; --edits) {
    const std::size_t at = in.bits(2) % blob.size();
    const std::uint64_t width = 1 + in.bits(1) % 8;
    std::uint64_t value = in.bits(8);
    constexpr std::uint64_t kLikely[] = {0, 1, 31, 32, 33, 64, 1ULL << 40, ~0ULL, 1ULL << 63, (1ULL << 61) + 1};
    if (in.coin()) value = in.pick(kLikely);
    std::memcpy(blob.data() + at, &value, std::min<std::uint64_t>(width, blob.size() - at));
  }
  if (in.bits(1) % 4 == 3) blob.resize(in.bits(2) % (blob.size() + 64));
  if (blob.size() < mpfa::kBlobHead + mpfa::kBlobTail || in.bits(1) % 16 == 15) return blob;
  if (in.coin()) {
    const auto size = static_cast<std::int64_t>(blob.size());
    std::memcpy(blob.data() + 16, &size, sizeof size);
  }
  const std::uint64_t sum = mpfa::blob_checksum(std::span(blob).first(blob.size() - mpfa::kBlobTail));
  std::memcpy(blob.data() + blob.size() - mpfa::kBlobTail, &sum, sizeof sum);
  return blob;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  const char* const recipe = in.pick(kRecipes);
  const std::vector<std::byte> blob = blob_of(in, recipe);

  mpfa::PagedCache cache = make_cache(recipe);
  require(append(cache, 0, 20, 3).ok(), "append failed");
  const std::vector<std::byte> other = saved(cache, 0);
  const std::int64_t free_before = cache.free_pages();
  const mpfa::Status s = cache.load(blob, 1);
  if (!s.ok()) {
    require(!s.message().empty(), "refused without a message");
    require(cache.lengths()[1] == 0 && cache.free_pages() == free_before, "a refused blob changed the cache");
  } else {
    attend(cache);
    const std::vector<std::byte> again = saved(cache, 1);
    require(cache.free_sequence(1).ok() && cache.load(again, 1).ok(), "a saved sequence was refused");
    require(saved(cache, 1) == again, "a loaded sequence saves as other bytes");
    const mpfa::Status more = append(cache, 1, 9, 4);
    require(more.ok() || more.code() == mpfa::StatusCode::out_of_memory, "a loaded sequence cannot be continued");
    require(cache.truncate(1, cache.lengths()[1]).ok(), "a length cannot be kept");
    require(cache.free_sequence(1).ok() && cache.free_pages() == free_before, "pages were lost");
  }
  require(saved(cache, 0) == other, "another sequence changed");
  return 0;
}
