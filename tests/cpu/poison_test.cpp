// NaN and infinity in slots that hold no token: K and V, codes and scales one at a time, on every format.
#include "tests/cpu/every_format.hpp"

namespace mpfa::test {
namespace {

class Poison : public EveryFormat {
 protected:
  /// Fills codes or scales of K or V with `byte` in all slots that hold no packed token of sequence 0.
  static void fill_unused(const CacheView& view, bool is_k, bool codes, int byte) {
    const OperandPages& o = is_k ? view.k : view.v;
    const BlockFormat& f = is_k ? view.k_format : view.v_format;
    const PageGeometry g = page_geometry(f, kDim, kPage);
    const std::int64_t all_rows = codes ? g.data_rows : g.scale_rows;
    const std::int64_t bytes = codes ? g.data_row_bytes : g.scale_row_bytes;
    const std::int64_t packed = view.sequences[0].packed_end;
    for (std::int64_t page = 0; page < view.num_pages; ++page) {
      std::int64_t used = 0;  // slots of the page with tokens
      for (std::int64_t i = 0; i * kPage < packed; ++i) {
        if (view.page_table[i] == page) used = std::min(kPage, packed - i * kPage);
      }
      for (std::int64_t h = 0; h < view.kv_heads; ++h) {
        const ConstPageBytes at = o.page(page, h);
        const std::byte* base = codes ? at.data : at.scales;
        const std::int64_t stride = codes ? at.data_row_stride : at.scale_row_stride;
        for (std::int64_t r = 0; base != nullptr && r < all_rows; ++r) {
          // A row is a channel with all slots side by side, or belongs to one token or one group of them.
          const bool in_use = r * (codes ? 1 : f.block_keys) < used;
          const std::int64_t from = f.axis == PackAxis::keys ? used * bytes / kPage : in_use ? bytes : 0;
          std::memset(const_cast<std::byte*>(base) + r * stride + from, byte, static_cast<std::size_t>(bytes - from));
        }
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, Poison, ::testing::ValuesIn(format_names()), format_test_name);

TEST_P(Poison, InOnePartPastTheLengthChangesNoBit) {
  for (const std::int64_t n : {1, 16, 17, 33, 64, 65, 129}) {
    const Tensor k = normal_from_table({1, n, 2, kDim}, 1), v = normal_from_table({1, n, 2, kDim}, 2);
    PagedCache cache = cache_of(1, n + kPage, 0);
    ASSERT_TRUE(cache.append(k.view(), v.view(), nullptr, nullptr, nullptr).ok());
    const std::vector<std::byte> before(cache.storage(), cache.storage() + cache.storage_bytes());
    for (const std::int64_t rows : {std::int64_t{1}, std::min<std::int64_t>(n, 24)}) {
      const Tensor q = normal_from_table({1, rows, 4, kDim}, 3);
      AttentionProblem p = problem(rows, n);
      p.batch = 1;
      AttentionTensors t;
      t.q = q.view();
      t.cache = cache.view();
      const Answer clean = answer(p, t);
      for (const auto& [is_k, codes] : {std::pair{true, true}, {true, false}, {false, true}, {false, false}}) {
        for (const int byte : {0x7F, 0xFF, 0x7C}) {  // NaN or infinity of some element or scale
          fill_unused(t.cache, is_k, codes, byte);
          const Answer poisoned = answer(p, t);
          ASSERT_EQ(clean.out, poisoned.out) << n << " keys, K " << is_k << ", codes " << codes;
          ASSERT_EQ(clean.lse, poisoned.lse) << n << " keys, K " << is_k << ", codes " << codes;
          std::copy(before.begin(), before.end(), cache.storage());
        }
      }
    }
  }
}

}  // namespace
}  // namespace mpfa::test
