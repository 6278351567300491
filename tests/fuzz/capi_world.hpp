// A cache behind the C ABI and the edits that a fuzz input asks for, hostile numbers among them.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "capi/handles.hpp"
#include "tests/fuzz/input.hpp"

namespace mpfa::fuzz {

/// A status with its message: a failing call says something, a successful one says nothing.
class Checked {
 public:
  operator mpfa_error*() { return &error_; }  // NOLINT(google-explicit-constructor)
  bool ok(mpfa_status status) {
    require(status == error_.status && status >= MPFA_OK && status <= MPFA_IO_ERROR, "a status no call may give");
    require((error_.message[0] == '\0') == (status == MPFA_OK), "a refusal without a message, or the reverse");
    return status == MPFA_OK;
  }

 private:
  mpfa_error error_ = MPFA_ERROR_INIT;
};

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
                                    "nvfp4,v_mean=mean"};

struct World {
  mpfa_recipe* recipe = nullptr;
  mpfa_cache* cache = nullptr;
  mpfa_cache_config config{};
  bool wild = false;  // NaN, infinity or huge numbers went in: results are not compared

  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    mpfa_cache_destroy(cache);
    mpfa_recipe_destroy(recipe);
  }

  /// False when the cache was refused.
  bool create(Input& in) {
    Checked e;
    require(e.ok(mpfa_recipe_parse(in.pick(kRecipes), &recipe, e)), "a recipe of the list was refused");
    mpfa_cache_config_init(&config, sizeof config);
    config.recipe = in.bits(1) == 255 ? nullptr : recipe;
    config.batch = in.size(1, 3);
    config.num_pages = in.size(0, 12);
    constexpr std::int64_t kPages[] = {16, 32, 64, 1, 7, 0, -5, 100000};
    config.page_size = in.pick(kPages);
    config.kv_heads = in.size(1, 3);
    const std::int64_t groups = std::clamp<std::int64_t>(config.kv_heads, -1, 3);
    config.q_heads = in.between(0, 20) == 20 ? in.size(0, 9) : groups * in.between(1, 5);
    config.head_dim = in.size(1, 80);
    config.head_dim_v = in.coin() ? config.head_dim : in.size(1, 80);
    config.threads = static_cast<std::int32_t>(in.between(1, 2));
    // Pools that a machine may really give would only be slow.
    if (config.num_pages > 1000 || config.batch > 1000) config.num_pages = -1;
    return e.ok(mpfa_cache_create(&config, &cache, e));
  }

  float value(Input& in, std::uint64_t seed, std::size_t i) {
    if (seed % 16 != 0 || i % 37 != 5) return number(seed, i);
    wild = true;
    constexpr float kWild[] = {NAN, INFINITY, -INFINITY, 3e38F, 1e-42F};
    return in.pick(kWild);
  }

  void append(Input& in) {
    const std::int64_t n = in.between(1, 3);
    std::int64_t s = in.size(0, 40);
    // A number of tokens that a tensor may have is taken at its word.
    if (s > 40 && s < (std::int64_t{1} << 39)) s = 40;
    const std::int64_t tokens = std::clamp<std::int64_t>(s, 0, 40), pad = in.between(0, 5);
    const std::int64_t widest = std::max(config.head_dim, config.head_dim_v) + pad;
    const std::int64_t heads = std::max(config.q_heads, config.kv_heads);
    const std::uint64_t seed = in.bits(2);
    std::vector<float> x(static_cast<std::size_t>(n * tokens * heads * widest));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = value(in, seed, i);
    const std::vector<float> before = x;
    const auto tensor = [&](std::int64_t h, std::int64_t d) {
      mpfa_tensor t = mpfa_contiguous(x.data(), MPFA_F32, n, s, h, d);
      if (tokens != s) return t;  // refused before it is read
      t.stride[2] = widest;
      t.stride[1] = heads * widest;
      t.stride[0] = tokens * heads * widest;
      return t;
    };
    mpfa_tensor k = tensor(config.kv_heads, in.bits(1) == 255 ? in.size(1, 80) : config.head_dim);
    mpfa_tensor v = tensor(config.kv_heads, config.head_dim_v), q = tensor(config.q_heads, config.head_dim);
    if (in.bits(1) == 255) k.dtype = static_cast<mpfa_dtype>(in.bits(1));
    if (k.dtype != MPFA_F32) k.shape[1] = -1;  // the buffer holds float32
    if (in.bits(1) == 255) v.data = nullptr;
    std::vector<std::int32_t> ids;
    std::vector<std::int64_t> counts;
    for (std::int64_t i = 0; i < n; ++i) {
      ids.push_back(static_cast<std::int32_t>(in.size(0, 2)));
      counts.push_back(in.size(0, tokens));
    }
    const bool all = n == config.batch && in.coin();
    Checked e;
    e.ok(mpfa_cache_append(cache, &k, &v, in.bits(1) % 8 == 7 ? nullptr : &q, all ? nullptr : ids.data(),
                           in.coin() ? counts.data() : nullptr, e));
    // As bytes: NaN is not equal to itself.
    const auto equal = [](float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; };
    require(std::equal(before.begin(), before.end(), x.begin(), equal), "append changed its input");
  }

  void write_slots(Input& in) {
    const std::int64_t n = in.between(0, 6);
    std::vector<float> x(static_cast<std::size_t>(n * config.kv_heads * std::max(config.head_dim, config.head_dim_v)));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = number(7, i);
    const mpfa_tensor k = mpfa_contiguous(x.data(), MPFA_F32, 1, n, config.kv_heads, config.head_dim);
    const mpfa_tensor v = mpfa_contiguous(x.data(), MPFA_F32, 1, n, config.kv_heads, config.head_dim_v);
    std::vector<std::int64_t> slots;
    for (std::int64_t i = 0; i < n; ++i) slots.push_back(in.size(-1, 300));
    Checked e;
    e.ok(mpfa_cache_write_slots(cache, &k, &v, slots.data(), in.bits(1) == 255 ? -1 : n, e));
  }

  void edit(Input& in) {
    Checked e;
    const std::int64_t a = in.size(0, 2), b = in.size(0, 2), n = in.size(-1, 60);
    switch (in.bits(1) % 8) {
      case 0: e.ok(mpfa_cache_fork(cache, a, b, n, e)); break;
      case 1: e.ok(mpfa_cache_truncate(cache, a, n, e)); break;
      case 2: e.ok(mpfa_cache_free_sequence(cache, a, e)); break;
      case 3: e.ok(mpfa_cache_seal(cache, e)); break;
      case 4: e.ok(mpfa_cache_copy_page(cache, n, b, e)); break;
      case 5: write_slots(in); break;
      case 6: {
        const std::int32_t page = static_cast<std::int32_t>(n);
        e.ok(mpfa_cache_free_slots(cache, &page, in.bits(1) == 255 ? -1 : 1, e));
        break;
      }
      default: {
        mpfa_blob* blob = nullptr;
        if (!e.ok(mpfa_cache_save(cache, a, &blob, e))) break;
        Checked loaded;
        loaded.ok(mpfa_cache_load(cache, mpfa_blob_data(blob), mpfa_blob_bytes(blob), b, loaded));
        mpfa_blob_destroy(blob);
      }
    }
  }
};

}  // namespace mpfa::fuzz
