// Pages that fill their buffer to the last byte: nothing before or behind it is read or written.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>

#include "tests/support/problems.hpp"

namespace mpfa::test {
namespace {

/// `bytes` bytes between two pages of memory that cannot be touched, flush with one of them.
class Guarded {
 public:
  Guarded(std::int64_t bytes, bool at_end) : page_(sysconf(_SC_PAGESIZE)) {
    const std::int64_t inner = (bytes + page_ - 1) / page_ * page_;
    size_ = static_cast<std::size_t>(inner + 2 * page_);
    base_ = static_cast<std::byte*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(base_ + page_, static_cast<std::size_t>(inner), PROT_READ | PROT_WRITE), 0);
    data = base_ + page_ + (at_end ? inner - bytes : 0);
  }
  ~Guarded() { munmap(base_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  std::byte* data = nullptr;

 private:
  std::int64_t page_;
  std::size_t size_ = 0;
  std::byte* base_ = nullptr;
};

TEST(Guards, TightBuffersAreReadInsideTheirBounds) {
  constexpr std::int64_t kPageSize = 16, kHeads = 2;
  for (const char* text : {"f32", "bf16", "nvfp4", "mxfp4", "fp8_e4m3", "mxfp8_e5m2", "int8", "int4_g32", "int4_asym",
                           "lloyd4", "mxfp4_f32", "int8_tile16"}) {
    for (const std::int64_t d : {16, 40, 64, 128}) {
      for (const std::int64_t rows : {1, 40}) {  // the paths for few rows and for many
        const std::string recipe = std::string("q=bf16,k=") + text + ",v=" + text + ",p=f32";
        Case a(gaussian({1, rows, 4, d}, 1), gaussian({1, 80, kHeads, d}, 2), gaussian({1, 80, kHeads, d}, 3),
               {recipe, kPageSize, {}});
        a.run(attend_cpu);
        const std::vector<double> want = a.out;
        const CacheView own = a.cache.view();
        const std::span<const std::int32_t> ids(own.page_table, 5);
        for (const auto& [order, at_end] :
             {std::pair{PageOrder::nhd, true}, {PageOrder::hnd, true}, {PageOrder::nhd, false}}) {
          PagesKind kind = k_pages(own).kind;
          kind.num_pages = 5;
          const PageGeometry g = pages_geometry(kind).value();
          const PageStrides ds = dense_strides(order, g.data_rows, kHeads, g.data_row_bytes),
                            ss = dense_strides(order, g.scale_rows, kHeads, g.scale_row_bytes);
          const Guarded kd(5 * ds.page, at_end), ks(5 * ss.page, at_end), vd(5 * ds.page, at_end),
              vs(5 * ss.page, at_end);
          const auto pages = [&](const Guarded& data, const Guarded& scales) {
            return make_pages(kind, MutablePagePart{data.data, 5 * ds.page, 0, ds},
                              MutablePagePart{scales.data, 5 * ss.page, 0, ss})
                .value();
          };
          const MutablePages k = pages(kd, ks), v = pages(vd, vs);
          const std::int32_t table[] = {4, 0, 3, 1, 2};
          ASSERT_TRUE(copy_pages(k_pages(own), k, ids, table).ok());
          ASSERT_TRUE(copy_pages(v_pages(own), v, ids, table).ok());
          a.tensors.cache.num_pages = 5;
          a.tensors.cache.k = k.bytes;
          a.tensors.cache.v = v.bytes;
          a.tensors.cache.page_table = table;
          a.run(attend_cpu);
          EXPECT_EQ(a.out, want) << text << " " << d;
        }
      }
    }
  }
}

/// A pool of pages, each in memory of its own that only those in `ids` may touch.
class SparsePool {
 public:
  SparsePool(std::int64_t pages, std::span<const std::int32_t> ids)
      : stride(sysconf(_SC_PAGESIZE)), bytes(pages * stride) {
    data =
        static_cast<std::byte*>(mmap(nullptr, size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (const std::int32_t id : ids) {
      EXPECT_EQ(mprotect(data + id * stride, static_cast<std::size_t>(stride), PROT_READ | PROT_WRITE), 0);
    }
  }
  ~SparsePool() { munmap(data, size()); }
  SparsePool(const SparsePool&) = delete;
  SparsePool& operator=(const SparsePool&) = delete;

  /// Rows of every page one after the other.
  [[nodiscard]] MutablePagePart part(std::int64_t rows, std::int64_t row_bytes) const {
    return {data, bytes, 0, {stride, rows * row_bytes, row_bytes}};
  }

  std::int64_t stride, bytes;
  std::byte* data = nullptr;

 private:
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(bytes); }
};

// A call costs what its keys cost, not what the pool holds.
TEST(Guards, OnlyPagesOfTheTableAreTouched) {
  constexpr std::int64_t kPages = 20000, kTokens = 40, kHeads = 2, kDim = 64;
  const std::int32_t used[] = {19999, 7, 8000};
  for (const char* text : {"kv=mxfp4,p=f32", "kv=nvfp4", "kv=int8", "k=bf16,v=fp8_e4m3,p=f32"}) {
    for (const std::int64_t rows : {1, 40}) {
      Case a(gaussian({1, rows, 4, kDim}, 1), gaussian({1, kTokens, kHeads, kDim}, 2),
             gaussian({1, kTokens, kHeads, kDim}, 3), {text, 16, {}});
      a.run(attend_cpu);
      const std::vector<double> want = a.out;
      const CacheView own = a.cache.view();
      std::vector<std::unique_ptr<SparsePool>> pools;
      const auto moved = [&](const Pages& from) {
        PagesKind kind = from.kind;
        kind.num_pages = kPages;
        const PageGeometry g = pages_geometry(kind).value();
        const SparsePool& data = *pools.emplace_back(std::make_unique<SparsePool>(kPages, used));
        const SparsePool& scales = *pools.emplace_back(std::make_unique<SparsePool>(kPages, used));
        const MutablePages to =
            make_pages(kind, data.part(g.data_rows, g.data_row_bytes), scales.part(g.scale_rows, g.scale_row_bytes))
                .value();
        EXPECT_TRUE(copy_pages(from, to, std::span(own.page_table, std::size(used)), used).ok());
        return to.bytes;
      };
      a.tensors.cache.k = moved(k_pages(own));
      a.tensors.cache.v = moved(v_pages(own));
      a.tensors.cache.num_pages = kPages;
      a.tensors.cache.page_table = used;
      a.tensors.cache.page_table_stride = std::size(used);
      a.run(attend_cpu);
      EXPECT_EQ(a.out, want) << text << ", " << rows << " rows";
    }
  }
}

// No page, no byte: the place of its scales would be past the buffer.
TEST(Guards, AnEmptyPoolIsConvertedInNoMemory) {
  std::byte byte{};
  const PagesKind kind{parse_format("bf16").value(), PagesLayout::linear, 0, 16, 1, 32};
  const MutablePages wide =
      make_pages(kind, MutablePagePart{&byte, 1, 0, dense_strides(PageOrder::nhd, 16, 1, 64)}, MutablePagePart{})
          .value();
  const Result<MutablePages> packed = convert_pages(wide, parse_format("mxfp4").value(), {});
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  EXPECT_EQ(packed.value().bytes.scales, nullptr);
}

}  // namespace
}  // namespace mpfa::test
