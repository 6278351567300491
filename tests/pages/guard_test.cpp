// Pages that fill their buffer to the last byte: nothing before or behind it is read or written.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

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
