// Offsets past 2^31 and 2^32, in memory that is reserved and hardly touched: pages, heads, queries, outputs, and the
// rows of an append.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/support/filled.hpp"

namespace mpfa::test {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// Address space of which only touched pages take memory.
class Reserved {
 public:
  explicit Reserved(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

AttentionProblem problem_of(const std::string& text, std::int64_t rows) {
  AttentionProblem p;
  p.recipe = recipe(text);
  p.max_q = rows;
  p.max_kv = 150;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.head_dim = p.head_dim_v = 32;
  p.page_size = 64;
  p.causal = true;
  return p;
}

class HugeOffsets : public ::testing::TestWithParam<const char*> {};

TEST_P(HugeOffsets, PagesAndHeadsOfACache) {
  for (const std::int64_t rows : {1, 20}) {
    Filled f(problem_of(GetParam(), rows), 1);
    std::vector<double> want, want_lse, got, got_lse;
    ASSERT_TRUE(attend_cpu(f.problem, f.tensors, want, want_lse).ok());
    // Page p of head h at p * (4 GiB + 4 KiB) + h * 2 GiB, K and V apart by 1 GiB, scales by 256 MiB.
    const std::int64_t page_stride = 4 * kGiB + 4096, head_stride = 2 * kGiB, pages = f.tensors.cache.num_pages;
    const Reserved memory(pages * page_stride + 2 * head_stride);
    if (memory.data() == nullptr) GTEST_SKIP() << "the address space cannot be reserved";
    CacheView v = f.tensors.cache;
    for (const bool is_k : {true, false}) {
      OperandPages& o = is_k ? v.k : v.v;
      const PageGeometry g = page_geometry(is_k ? v.k_format : v.v_format, 32, 64);
      std::byte* data = memory.data() + (is_k ? 0 : kGiB);
      std::byte* scales = data + kGiB / 4;
      for (std::int64_t page = 0; page < pages; ++page) {
        for (std::int64_t h = 0; h < 2; ++h) {
          const ConstPageBytes from = o.page(page, h);
          const std::int64_t at = page * page_stride + h * head_stride;
          std::memcpy(data + at, from.data, static_cast<std::size_t>(g.data_bytes()));
          if (from.scales != nullptr) std::memcpy(scales + at, from.scales, static_cast<std::size_t>(g.scale_bytes()));
        }
      }
      const bool has_scales = o.scales != nullptr;
      o = {data,        page_stride, head_stride,       g.data_row_bytes, has_scales ? scales : nullptr,
           page_stride, head_stride, g.scale_row_bytes, o.global};
    }
    f.tensors.cache = v;
    ASSERT_TRUE(attend_cpu(f.problem, f.tensors, got, got_lse).ok());
    EXPECT_EQ(got, want);
    EXPECT_EQ(got_lse, want_lse);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, HugeOffsets,
                         ::testing::Values("bf16", "fp8", "mxfp4,centre=none", "k=int8_tile16,v=nvfp4@keys,p=f32"),
                         [](const auto& test) { return std::to_string(test.index); });

TEST(FarRows, RowsOfQueriesAndOutputs) {
  for (const std::int64_t rows : {1, 20}) {
    AttentionProblem p = problem_of("q=f32,k=mxfp4,v=bf16,p=f32", rows);
    p.batch = 2;
    Filled f(p, 1);
    std::vector<double> want, lse;
    ASSERT_TRUE(attend_cpu(f.problem, f.tensors, want, lse).ok());
    // Sequence b, row i at element b * 2^31 + i * 2^25.
    const Reserved q(3 * 2 * kGiB * 4), out(3 * 2 * kGiB * 4);
    if (q.data() == nullptr || out.data() == nullptr) GTEST_SKIP() << "the address space cannot be reserved";
    const std::array<std::int64_t, 4> strides{std::int64_t{1} << 31, std::int64_t{1} << 25, 32, 1};
    AttentionTensors t = f.tensors;
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t i = 0; i < rows; ++i) {
        std::memcpy(q.data() + 4 * (b * strides[0] + i * strides[1]),
                    static_cast<const float*>(f.tensors.q.data) + (b * rows + i) * 4 * 32, 4 * 32 * sizeof(float));
      }
    }
    t.q.data = q.data();
    t.q.stride = strides;
    t.out = {out.data(), DType::f32, {2, rows, 4, 32}, strides};
    const Plan plan = mpfa::plan(f.problem, Device::cpu).value();
    GuardedBytes scratch(plan.workspace_bytes);
    ASSERT_TRUE(attend(plan, t, {scratch.data(), plan.workspace_bytes}).ok());
    for (std::int64_t r = 0; r < 2 * rows; ++r) {
      const auto* row = reinterpret_cast<const float*>(out.data()) + r / rows * strides[0] + r % rows * strides[1];
      for (std::int64_t i = 0; i < 4 * 32; ++i) ASSERT_EQ(row[i], want[r * 4 * 32 + i]) << r;
    }
  }
}

TEST(FarRows, RowsOfAnAppend) {
  // Sequence b of k at element b * 2^30, of v at b * 2^31.
  const Reserved k_memory(4 * kGiB * 4 + kGiB), v_memory(4 * 2 * kGiB * 4 + kGiB);
  if (k_memory.data() == nullptr || v_memory.data() == nullptr) GTEST_SKIP() << "the address space cannot be reserved";
  CacheConfig c;
  c.recipe = recipe("mxfp4,centre=none");
  c.batch = 4;
  c.num_pages = 4;
  c.page_size = 32;
  c.head_dim = c.head_dim_v = 32;
  PagedCache far = PagedCache::create(c).value(), near = PagedCache::create(c).value();
  const Tensor k = gaussian({4, 20, 1, 32}, 1), v = gaussian({4, 20, 1, 32}, 2);
  const auto spread = [](const Reserved& memory, const Tensor& x, std::int64_t stride) {
    TensorView view = x.view();
    for (std::int64_t b = 0; b < 4; ++b) {
      std::memcpy(memory.data() + 4 * b * stride, x.data.data() + b * view.stride[0], 20 * 32 * sizeof(float));
    }
    view.data = memory.data();
    view.stride[0] = stride;
    return view;
  };
  ASSERT_TRUE(near.append(k.view(), v.view(), nullptr, nullptr, nullptr).ok());
  ASSERT_TRUE(far.append(spread(k_memory, k, kGiB), spread(v_memory, v, 2 * kGiB), nullptr, nullptr, nullptr).ok());
  for (std::int64_t b = 0; b < 4; ++b) {
    std::vector<std::byte> a, e;
    ASSERT_TRUE(near.save(a, b).ok() && far.save(e, b).ok());
    EXPECT_EQ(a, e) << b;
  }
}

}  // namespace
}  // namespace mpfa::test
