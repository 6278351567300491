// Where tokens lie must not matter: order of pages, strides of the caller's memory, how a prompt is cut into calls.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/support/problems.hpp"

namespace mpfa {
namespace {

class Layout : public ::testing::TestWithParam<std::string> {};

test::Case make_case(const std::string& recipe, std::int64_t page_size) {
  return {test::gaussian({2, 3, 6, 64}, 1),
          test::gaussian({2, 150, 2, 64}, 2),
          test::gaussian({2, 150, 2, 64}, 3),
          {recipe, page_size, {150, 97}}};
}

TEST_P(Layout, PermutedPagesChangeNoBit) {
  test::Case a = make_case(GetParam(), 16);
  a.run(test::attend_cpu);
  const std::vector<double> want = a.out, want_lse = a.lse;
  // The same tokens at the highest page ids, in descending order: copied page by page, then the table is replaced.
  const CacheView before = a.cache.view();
  std::vector<std::int32_t> old(before.page_table, before.page_table + 10);
  ASSERT_TRUE(a.cache.grow(60).ok());
  std::vector<std::int32_t> moved;
  for (std::int32_t i = 0; i < 10; ++i) {
    moved.push_back(59 - 2 * i);
    ASSERT_TRUE(a.cache.copy_page(old[i], moved[i]).ok());
  }
  ASSERT_TRUE(a.cache.set_pages(0, moved).ok());
  a.tensors.cache = a.cache.view();
  a.run(test::attend_cpu);
  EXPECT_EQ(a.out, want);
  EXPECT_EQ(a.lse, want_lse);
}

TEST_P(Layout, StridedAndPaddedPagesChangeNoBit) {
  test::Case a = make_case(GetParam(), 32);
  a.run(test::attend_cpu);
  const std::vector<double> want = a.out;
  // Every row of codes and scales in a buffer of its own stride, the bytes between filled with NaN patterns.
  CacheView v = a.cache.view();
  std::vector<std::vector<std::byte>> buffers;
  const auto spread = [&](OperandPages& o, const BlockFormat& f, std::int64_t d) {
    const PageGeometry g = page_geometry(f, d, 32);
    const auto copy = [&](const std::byte* data, std::int64_t page, std::int64_t head, std::int64_t row,
                          std::int64_t rows, std::int64_t bytes, std::int64_t stride) {
      std::vector<std::byte>& to = buffers.emplace_back(v.num_pages * 2 * rows * stride, std::byte{0xFF});
      for (std::int64_t p = 0; p < v.num_pages; ++p) {
        for (std::int64_t h = 0; h < 2; ++h) {
          for (std::int64_t r = 0; r < rows; ++r) {
            std::memcpy(to.data() + ((h * v.num_pages + p) * rows + r) * stride, data + p * page + h * head + r * row,
                        static_cast<std::size_t>(bytes));
          }
        }
      }
      return to.data();
    };
    const std::int64_t stride = g.data_row_bytes + 12;
    o.data =
        copy(o.data, o.data_page_stride, o.data_head_stride, o.data_row_stride, g.data_rows, g.data_row_bytes, stride);
    o.data_row_stride = stride;
    o.data_page_stride = g.data_rows * stride;
    o.data_head_stride = v.num_pages * o.data_page_stride;
    if (g.scale_rows * g.scale_row_bytes == 0) return;
    const std::int64_t scale_stride = g.scale_row_bytes + 20;
    o.scales = copy(o.scales, o.scale_page_stride, o.scale_head_stride, o.scale_row_stride, g.scale_rows,
                    g.scale_row_bytes, scale_stride);
    o.scale_row_stride = scale_stride;
    o.scale_page_stride = g.scale_rows * scale_stride;
    o.scale_head_stride = v.num_pages * o.scale_page_stride;
  };
  spread(v.k, v.k_format, 64);
  spread(v.v, v.v_format, 64);
  a.tensors.cache = v;
  a.run(test::attend_cpu);
  EXPECT_EQ(a.out, want);
}

TEST_P(Layout, PromptInTwoCallsThenDecodeEqualsOneCall) {
  const test::Tensor q = test::gaussian({1, 40, 4, 64}, 4), k = test::gaussian({1, 40, 2, 64}, 5),
                     v = test::gaussian({1, 40, 2, 64}, 6);
  const auto part = [](const test::Tensor& x, std::int64_t from, std::int64_t count) {
    test::Tensor t({1, count, x.shape[2], x.shape[3]});
    std::copy_n(x.data.begin() + from * x.shape[2] * x.shape[3], t.data.size(), t.data.begin());
    return t;
  };
  CacheConfig c;
  c.recipe = test::recipe(GetParam());
  c.num_pages = 4;
  c.page_size = 16;
  c.q_heads = 4;
  c.kv_heads = 2;
  c.head_dim = c.head_dim_v = 64;
  test::Case whole(part(q, 39, 1), k, v, {GetParam(), 16, {}});
  whole.run(test::attend_cpu);
  for (std::int64_t first = 0; first <= 31; ++first) {
    PagedCache cache = PagedCache::create(c).value();
    std::fill_n(cache.storage(), cache.storage_bytes(), std::byte{0xFF});
    std::vector<std::int64_t> cuts{first, 32 - first};
    cuts.insert(cuts.end(), 8, 1);
    std::int64_t at = 0;
    for (const std::int64_t n : cuts) {
      if (n == 0) continue;
      const test::Tensor kp = part(k, at, n), vp = part(v, at, n);
      ASSERT_TRUE(cache.append(kp.view(), vp.view(), nullptr, nullptr, nullptr).ok());
      at += n;
    }
    whole.tensors.cache = cache.view();
    const std::vector<double> want = whole.out;
    whole.run(test::attend_cpu);
    EXPECT_EQ(whole.out, want) << "first call of " << first;
  }
}

// Recipes without sequence means: those depend on the first call by design.
INSTANTIATE_TEST_SUITE_P(Recipes, Layout,
                         ::testing::Values("bf16", "fp8", "int8", "mxfp4,centre=none", "nvfp4,centre=none",
                                           "k=nvfp4,v=nvfp4@keys,p=bf16", "k=int4_tile16,v=int8,p=f32",
                                           "k=lloyd4,v=int4_asym,p=bf16", "k=mxfp4,v=mxfp4,sink=4,recent=9,p=f32",
                                           "kv=nvfp4,v_mean=page,p=bf16"),
                         [](const ::testing::TestParamInfo<std::string>& parameter) {
                           std::string name = parameter.param;
                           for (char& ch : name) ch = std::isalnum(static_cast<unsigned char>(ch)) != 0 ? ch : '_';
                           return name;
                         });

/// Mean relative L2 of the output over 8 seeds, K = N(0, 1) + bias in one channel, only K quantised.
double k_bias_error(const std::string& format, const std::string& centre, float bias) {
  double sum = 0;
  for (unsigned seed = 0; seed < 8; ++seed) {
    const test::Tensor q = test::gaussian({1, 64, 1, 64}, 3 * seed), v = test::gaussian({1, 256, 1, 64}, 3 * seed + 2);
    const test::Tensor k = test::with_bias(test::gaussian({1, 256, 1, 64}, 3 * seed + 1), 5, bias);
    test::Case low(q, k, v, {"q=f32,k=" + format + ",v=f32,p=f32,centre=" + centre, 64, {}});
    low.run(test::attend_cpu);
    std::vector<double> want, lse;
    EXPECT_TRUE(reference::exact(low.problem, low.tensors.q, k.view(), v.view(), low.tensors, want, lse).ok());
    sum += test::relative_l2(low.out, want);
  }
  return sum / 8;
}

TEST(KBias, UncentredCodesCollapseAndCentredOnesDoNot) {
  for (const char* format : {"mxfp4_ocp", "mxfp4"}) {
    const double plain = k_bias_error(format, "none", 0);
    EXPECT_NEAR(plain, .11, .02) << format;
    EXPECT_GE(k_bias_error(format, "none", 30), 3 * plain) << format;
    EXPECT_NEAR(k_bias_error(format, "none", 300), .60, .06) << format;  // all 31 neighbours become 0
    for (const float bias : {0.0F, 30.0F, 300.0F}) {
      EXPECT_LE(k_bias_error(format, "mean", bias), 1.05 * plain) << format << " " << bias;
    }
  }
}

TEST(KBias, CentringServesEveryFormatThatABiasHurts) {
  for (const char* format : {"nvfp4", "nvfp4_4over6", "mxfp4_f32", "e3m0_f32", "int4", "int4_g32", "int4_asym",
                             "lloyd4", "int4_tile16", "int8", "fp8_e4m3"}) {
    const double plain = k_bias_error(format, "none", 0);
    for (const float bias : {30.0F, 300.0F}) {
      EXPECT_LE(k_bias_error(format, "mean", bias), 1.3 * plain + 1e-3) << format << " " << bias;
    }
  }
}

}  // namespace
}  // namespace mpfa
