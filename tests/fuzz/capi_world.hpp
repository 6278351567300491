// A cache behind the C ABI and the edits that a fuzz input asks for, hostile numbers among them. A second cache takes
// the same calls by the plainest way: keys rotated beforehand, float32, one thread. Both must hold the same bytes.
#pragma once

#include <algorithm>
#include <vector>

#include "capi/handles.hpp"
#include "tests/fuzz/checked.hpp"
#include "tests/fuzz/input.hpp"

namespace mpfa::fuzz {

constexpr const char* kRecipes[] = {"mxfp4,centre=none",
                                    "bf16",
                                    "fp8",
                                    "nvfp4",
                                    "mpfa",
                                    "int8",
                                    "mxattention",
                                    "turboquant_4bit",
                                    "sage2",
                                    "k=nvfp4,v=nvfp4@keys,p=bf16,sink=3,recent=page",
                                    "k=int4_tile16,v=int8,p=f32,recent=5",
                                    "k=mxfp4,v=int4_asym,p=f32,v_residual=on",
                                    "k=fp8_e5m2,v=lloyd4,rotate=qkv,p=e4m3_loglin",
                                    "nvfp4,v_mean=mean",
                                    "k=f32,v=f32,p=f32",
                                    "mpfa_static",
                                    "kv=mxfp4,p=f32,recent=5",
                                    "kv=fp8_e4m3_static,p=f32,v_mean=static",
                                    "kv=nvfp4_4over6,rotate=qkv,p=f32"};
constexpr const char* kLatentRecipes[] = {"k=f32,v=f32,p=f32",       "kv=mxfp4",
                                          "kv=nvfp4,p=f32",          "kv=fp8_e4m3,p=e4m3x256",
                                          "kv=int8,p=f32",           "kv=bf16,p=bf16,centre=mean",
                                          "kv=mxfp4,p=f32,recent=5", "kv=int4_g32,p=f32,sink=3"};

/// Runs the tasks of a call one after the other, in an order and as workers that the context (a number) chooses.
inline void shuffled(void* context, std::int64_t tasks, std::int32_t threads,
                     void (*body)(void* argument, std::int64_t task, std::int32_t worker), void* argument) {
  const std::uint64_t seed = *static_cast<const std::uint64_t*>(context);
  require(tasks >= 0 && threads >= 1, "an executor was called for nothing");
  for (std::int64_t i = 0; i < tasks; ++i) {
    const std::int64_t at = (static_cast<std::int64_t>(seed % 97) + i) % tasks;
    body(argument, seed % 2 == 0 ? at : tasks - 1 - at, static_cast<std::int32_t>((seed + i) % threads));
  }
}

struct World {
  mpfa_recipe* recipe = nullptr;
  mpfa_cache* cache = nullptr;
  mpfa_cache* plain = nullptr;
  mpfa_cache_config config{};
  std::uint64_t order = 0;
  mpfa_executor executor{sizeof(mpfa_executor), &order, shuffled};
  std::vector<float> means, globals;
  bool wild = false;       // NaN, infinity or huge numbers went in: results are not compared
  bool unwritten = false;  // a page was copied over another one: slots that nothing wrote may be read

  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    mpfa_cache_destroy(plain);
    mpfa_cache_destroy(cache);
    mpfa_recipe_destroy(recipe);
  }

  /// The threads of the library, or the caller's.
  const mpfa_executor* any_executor(Input& in) {
    order = in.bits(1);
    executor.parallel_for = order == 255 ? nullptr : shuffled;
    return in.coin() ? &executor : nullptr;
  }

  /// False when the cache was refused.
  bool create(Input& in) {
    Checked e;
    mpfa_cache_config_init(&config, sizeof config);
    config.shared_kv = in.rarely(4) ? 1 : 0;
    const char* const text = config.shared_kv == 1 && !in.rarely(8) ? in.pick(kLatentRecipes) : in.pick(kRecipes);
    e.must(mpfa_recipe_parse(text, &recipe, e), "a recipe of the list was refused");
    config.recipe = in.rarely(256) ? nullptr : recipe;
    config.batch = in.size(1, 3);
    config.num_pages = in.size(0, 12);
    constexpr std::int64_t kPages[] = {16, 32, 64, 1, 7, 0, -5, 100000};
    config.page_size = in.rarely(8) ? in.pick(kPages) : kPages[in.between(0, 2)];
    config.kv_heads = in.size(1, 3);
    const std::int64_t groups = std::clamp<std::int64_t>(config.kv_heads, -1, 3);
    config.q_heads = in.between(0, 20) == 20 ? in.size(0, 9) : groups * in.between(1, 5);
    config.head_dim = in.rarely(4) ? in.size(1, 80) : 16 * in.between(1, 5);
    config.head_dim_v = in.coin() ? config.head_dim : in.rarely(4) ? in.size(1, 80) : 16 * in.between(1, 5);
    config.threads = static_cast<std::int32_t>(in.between(1, 2));
    if (config.shared_kv == 1 && in.rarely(4)) {
      config.head_dim = 576;
      config.head_dim_v = 512;
      config.kv_heads = 1;
      config.q_heads = in.between(1, 5);
    }
    // Pools that a machine may really give would only be slow.
    if (std::max({config.num_pages, config.batch, config.q_heads, config.kv_heads}) > 1000) config.num_pages = -1;
    if (in.coin()) calibrate(in);
    mpfa_cache_config simple = config;
    config.executor = any_executor(in);
    if (!e.ok(mpfa_cache_create(&config, &cache, e))) return false;
    simple.threads = 1;
    e.must(mpfa_cache_create(&simple, &plain, e), "a configuration is refused without an executor");
    return true;
  }

  /// Static means and scales; where the sizes are hostile they are left out.
  void calibrate(Input& in) {
    const std::int64_t heads = std::max(config.q_heads, config.kv_heads);
    const std::int64_t widest = std::max(config.head_dim, config.head_dim_v);
    if (heads < 1 || heads > 64 || widest < 1 || widest > 1000) return;
    for (std::int64_t i = 0; i < heads * widest; ++i) means.push_back(number(3, static_cast<std::uint64_t>(i)) / 4);
    for (std::int64_t h = 0; h < heads; ++h) globals.push_back(in.rarely(256) ? -1.0F : 0.25F);
    const std::uint64_t which = in.bits(1);
    if (which % 2 == 1) config.k_mean = means.data();
    if (which / 2 % 2 == 1) config.q_mean = means.data();
    if (which / 4 % 2 == 1) config.v_mean = means.data();
    if (which / 8 % 2 == 1) config.k_global = globals.data();
    if (which / 16 % 2 == 1) config.v_global = globals.data();
  }

  /// The call on both caches: refused alike, or done alike.
  template <class Call>
  bool both(Call call) {
    Checked a, b;
    const bool ok = a.ok(call(cache, a));
    require(b.ok(call(plain, b)) == ok && a.status() == b.status(), "two caches with the same tokens answer apart");
    same();
    return ok;
  }

  [[nodiscard]] mpfa_cache_stats stats() const {
    mpfa_cache_stats s{};
    s.struct_size = sizeof s;
    require(mpfa_cache_get_stats(cache, &s, nullptr) == MPFA_OK, "no statistics");
    return s;
  }

  /// Every sequence has the same bytes in both caches.
  void same() const {
    mpfa_cache_stats a = stats(), b = a;
    require(mpfa_cache_get_stats(plain, &b, nullptr) == MPFA_OK, "no statistics");
    require(a.free_pages == b.free_pages && a.memory_bytes == b.memory_bytes, "pages differ from those of the twin");
    if (unwritten) return;
    require(std::memcmp(&a.counters, &b.counters, sizeof a.counters) == 0, "counters differ from those of the twin");
    for (std::int64_t i = 0; i < config.batch; ++i) {
      require(a.lengths[i] == b.lengths[i], "lengths differ from those of the twin");
      Checked e;
      mpfa_blob *x = nullptr, *y = nullptr;
      require(e.ok(mpfa_cache_save(cache, i, &x, e)) && e.ok(mpfa_cache_save(plain, i, &y, e)), "a save was refused");
      require(mpfa_blob_bytes(x) == mpfa_blob_bytes(y) &&
                  std::memcmp(mpfa_blob_data(x), mpfa_blob_data(y), mpfa_blob_bytes(x)) == 0,
              "bytes differ from those of the twin");
      mpfa_blob_destroy(x);
      mpfa_blob_destroy(y);
    }
  }

  /// A sequence to pages, of which the input may know the generations, or older ones.
  void move_pages(Input& in, std::int64_t sequence, std::int32_t page) {
    const std::int32_t pages[] = {page, static_cast<std::int32_t>(in.size(0, 12))};
    const std::int64_t count = in.rarely(16) ? -1 : in.between(0, 2);
    std::int64_t generations[2] = {};
    bool stale = false;
    for (int i = 0; i < 2; ++i) {
      std::int64_t now[2] = {}, *next = now;
      both([&](mpfa_cache* c, mpfa_error* e) { return mpfa_cache_page_generation(c, pages[i], next++, e); });
      require(now[0] == now[1], "a generation differs from the twin's");
      const bool older = in.rarely(4);
      generations[i] = now[0] - (older ? 1 : 0);
      stale = stale || (older && i < count);
    }
    const std::int64_t* const expected = in.coin() ? generations : nullptr;
    wild = unwritten = true;  // page ids move, contents do not
    const bool moved = both(
        [&](mpfa_cache* c, mpfa_error* e) { return mpfa_cache_set_pages(c, sequence, pages, expected, count, e); });
    require(!moved || expected == nullptr || !stale, "a page of another generation was taken");
  }

  void edit(Input& in) {
    const std::int64_t a = in.size(0, 2), b = in.size(0, 2), n = in.size(-1, 60);
    const std::int64_t count = in.rarely(256) ? -1 : 1;
    const auto page = static_cast<std::int32_t>(n);
    switch (in.bits(1) % 9) {
      case 0: both([&](mpfa_cache* c, mpfa_error* e) { return mpfa_cache_fork(c, a, b, n, e); }); return;
      case 1: both([&](mpfa_cache* c, mpfa_error* e) { return mpfa_cache_truncate(c, a, n, e); }); return;
      case 2: both([&](mpfa_cache* c, mpfa_error* e) { return mpfa_cache_free_sequence(c, a, e); }); return;
      case 3: both([&](mpfa_cache* c, mpfa_error* e) { return mpfa_cache_seal(c, e); }); return;
      case 4:
        wild = unwritten = true;
        both([&](mpfa_cache* c, mpfa_error* e) { return mpfa_cache_copy_page(c, n, b, e); });
        return;
      case 5: both([&](mpfa_cache* c, mpfa_error* e) { return mpfa_cache_free_slots(c, &page, count, e); }); return;
      case 7: move_pages(in, a, page); return;
      // Beyond what the pool may hold it would be terabytes.
      case 6: both([&](mpfa_cache* c, mpfa_error* e) { return mpfa_cache_grow(c, n > 60 ? -1 : n, e); }); return;
      default:
        both([&](mpfa_cache* c, mpfa_error* e) {
          mpfa_blob* blob = nullptr;
          const mpfa_status saved = mpfa_cache_save(c, a, &blob, e);
          if (saved != MPFA_OK) return saved;
          const mpfa_status loaded = mpfa_cache_load(c, mpfa_blob_data(blob), mpfa_blob_bytes(blob), b, e);
          mpfa_blob_destroy(blob);
          return loaded;
        });
    }
  }
};

}  // namespace mpfa::fuzz
