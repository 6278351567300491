// append against plain code row by row, and its independence of threads, dtypes and strides.
#include <gtest/gtest.h>

#include <cstring>

#include "cache/convert.hpp"
#include "cache/hadamard.hpp"
#include "cache/rank_one.hpp"
#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

constexpr std::int64_t kHeads = 2, kGroup = 3, kTokens = 37, kPageSize = 16;

CacheConfig config_of(const std::string& text, std::int64_t d, std::int64_t dv, int threads = 1) {
  CacheConfig c;
  c.recipe = recipe(text);
  c.batch = 2;
  c.num_pages = 12;
  c.page_size = kPageSize;
  c.q_heads = kHeads * kGroup;
  c.kv_heads = kHeads;
  c.head_dim = d;
  c.head_dim_v = dv;
  c.threads = threads;
  if (c.recipe.centre == Centre::fixed) c.k_mean = gaussian({1, 1, kHeads, d}, 21).data;
  if (c.recipe.q_centre == QCentre::fixed) c.q_mean = gaussian({1, 1, kHeads * kGroup, d}, 22).data;
  return c;
}

struct Filled {
  PagedCache cache;
  std::vector<std::byte> bytes;

  Filled(const CacheConfig& c, const TensorView& k, const TensorView& v, const TensorView& q)
      : cache(PagedCache::create(c).value()) {
    std::memset(cache.storage(), 0xA5, static_cast<std::size_t>(cache.storage_bytes()));
    const Status s = cache.append(k, v, &q, nullptr, nullptr);
    EXPECT_TRUE(s.ok()) << s.message();
    bytes.assign(cache.storage(), cache.storage() + cache.storage_bytes());
  }
};

std::vector<std::int64_t> counted(const PagedCache& cache) {
  const QuantiseCounters& c = cache.counters();
  return {c.nonfinite_blocks, c.saturated_elements, c.flushed_blocks};
}

TEST(Append, WritesTheBytesOfPlainCode) {
  for (const char* text :
       {"bf16", "fp8", "k=int8,v=int4,p=bf16", "nvfp4_4over6,centre=none", "mxfp4,centre=static", "mpfa_static",
        "mpfa_static,rank_one=bf16,rotate=qkv", "turboquant_4bit", "mxfp4,rotate=qk"}) {
    for (const std::int64_t d : {24, 64, 128}) {
      const std::int64_t dv = d == 64 ? 40 : d;
      const CacheConfig c = config_of(text, d, dv);
      const Tensor k = heavy_tail({2, kTokens, kHeads, d}, 1), v = heavy_tail({2, kTokens, kHeads, dv}, 2);
      const Tensor q = gaussian({2, kTokens, kHeads * kGroup, d}, 3);
      const Filled filled(c, k.view(), v.view(), q.view());
      const CacheView view = filled.cache.view();
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t t = 0; t < kTokens; ++t) {
          const std::int32_t page = view.page_table[b * view.page_table_stride + t / kPageSize];
          const std::int64_t slot = t % kPageSize;
          for (std::int64_t h = 0; h < kHeads; ++h) {
            const auto same = [&](const BlockFormat& f, std::int64_t n, std::vector<float>& x, const OperandPages& p) {
              const PageGeometry g = page_geometry(f, n, 1);
              std::vector<std::byte> data(static_cast<std::size_t>(g.data_bytes()));
              std::vector<std::byte> scale(static_cast<std::size_t>(g.scale_bytes() + 1));
              quantise_tokens(f, n, 0, 1, x.data(), n, 1.0F, {data.data(), g.data_row_bytes, scale.data(), 0}, nullptr);
              const ConstPageBytes at = p.page(page, h);
              return std::memcmp(at.data + slot * at.data_row_stride, data.data(), data.size()) == 0 &&
                     (g.scale_bytes() == 0 || std::memcmp(at.scales + slot * at.scale_row_stride, scale.data(),
                                                          static_cast<std::size_t>(g.scale_bytes())) == 0);
            };
            std::vector<float> x(static_cast<std::size_t>(d)), y(static_cast<std::size_t>(dv));
            load_row(k.data.data(), DType::f32, ((b * kTokens + t) * kHeads + h) * d, 1, d, x.data());
            load_row(v.data.data(), DType::f32, ((b * kTokens + t) * kHeads + h) * dv, 1, dv, y.data());
            const float* centre = view.sequences[b].k_mean;
            for (std::int64_t i = 0; centre != nullptr && i < d; ++i) x[i] -= centre[h * d + i];
            for (std::int64_t m = 0; view.rank_one != nullptr && m < kGroup; ++m) {
              const float term = rank_one_term(c.q_mean.data() + (h * kGroup + m) * d, x.data(), d);
              const float want = view.rank_one_wide ? term : bf16_to_float(float_to_bf16(term));
              ASSERT_EQ(view.rank_one_at(page, h, slot, m), want) << text;
            }
            if (c.recipe.rotate != Rotate::none) hadamard_rows(x.data(), 1, d, d);
            if (c.recipe.rotate == Rotate::qkv) hadamard_rows(y.data(), 1, dv, dv);
            ASSERT_TRUE(same(view.k_format, d, x, view.k)) << text << " K, head dim " << d;
            ASSERT_TRUE(same(view.v_format, dv, y, view.v)) << text << " V, head dim " << dv;
          }
        }
      }
    }
  }
}

/// Runs the tasks from the last to the first, as different workers.
void backwards(void* calls, std::int64_t tasks, int threads, void (*body)(void*, std::int64_t, int), void* argument) {
  ++*static_cast<int*>(calls);
  for (std::int64_t i = tasks; i-- > 0;) body(argument, i, static_cast<int>(i % threads));
}

TEST(Append, BytesAndCountersDoNotDependOnThreads) {
  const std::int64_t d = 64, tokens = 1100;
  Tensor k = heavy_tail({2, tokens, kHeads, d}, 1), v = heavy_tail({2, tokens, kHeads, d}, 2);
  const Tensor q = gaussian({2, tokens, kHeads * kGroup, d}, 3);
  for (std::size_t i = 0; i < k.data.size(); i += 977) k.data[i] = i % 2 == 0 ? NAN : 3e38F;
  for (const char* text :
       {"mpfa", "bitdecoding_nvfp4", "int4_int8", "fp8,recent=100", "mxattention", "nvfp4,v_mean=page"}) {
    CacheConfig c = config_of(text, d, d);
    c.page_size = 64;
    c.num_pages = 40;
    Filled one(c, k.view(), v.view(), q.view());
    int calls = 0;
    c.threads = 5;
    for (const bool own : {false, true}) {
      c.executor = own ? Executor{backwards, &calls} : Executor{};
      Filled many(c, k.view(), v.view(), q.view());
      EXPECT_EQ(many.bytes, one.bytes) << text;
      EXPECT_EQ(counted(many.cache), counted(one.cache)) << text;
      ASSERT_TRUE(many.cache.seal().ok());
    }
    EXPECT_GT(calls, 0) << text;
  }
}

TEST(Append, ReadsEveryDtypeAndStride) {
  const std::int64_t d = 40;
  const CacheConfig c = config_of("mpfa", d, d);
  const auto shape = std::array<std::int64_t, 4>{2, kTokens, kHeads, d};
  Tensor k = gaussian(shape, 1), v = gaussian(shape, 2);
  const Tensor q = gaussian({2, kTokens, kHeads * kGroup, d}, 3);
  for (Tensor* x : {&k, &v}) {
    for (float& e : x->data) e = bf16_to_float(float_to_bf16(e));
  }
  const Filled want(c, k.view(), v.view(), q.view());
  std::vector<std::uint16_t> bits(k.data.size());
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = float_to_bf16(k.data[i]);
  // V as [batch, heads, tokens, d] with a gap after every element.
  std::vector<float> sparse(2 * v.data.size());
  TensorView v_view{sparse.data(), DType::f32, shape, {2 * kHeads * kTokens * d, 2 * d, 2 * kTokens * d, 2}};
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        for (std::int64_t i = 0; i < d; ++i) {
          sparse[static_cast<std::size_t>(b * v_view.stride[0] + t * v_view.stride[1] + h * v_view.stride[2] + 2 * i)] =
              v.at(b, t, h, i);
        }
      }
    }
  }
  const Filled got(c, contiguous(static_cast<const void*>(bits.data()), DType::bf16, shape), v_view, q.view());
  EXPECT_EQ(got.bytes, want.bytes);
}

}  // namespace
}  // namespace mpfa::test
