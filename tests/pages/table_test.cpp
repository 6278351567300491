// Compressed page tables: the dense table they stand for, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mpfa/pages.hpp"

namespace mpfa::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Csr {
  std::vector<std::int32_t> indptr, indices, last;
  [[nodiscard]] Result<DensePageTable> dense(std::int64_t num_pages = 10, std::int64_t page_size = 16) const {
    return dense_page_table({indptr, indices, last}, num_pages, page_size);
  }
  [[nodiscard]] std::string refused(StatusCode code = StatusCode::invalid_argument) const {
    const Status s = dense().status();
    EXPECT_EQ(s.code(), code) << s.message();
    return s.message();
  }
};

TEST(PageTable, BecomesDense) {
  // Sequence 1 has no pages; page 7 is shared by 0 and 2 and repeated in 2; an entry past the last offset is not read.
  const Csr csr{{0, 3, 3, 5}, {7, 2, 9, 7, 7, -99}, {1, 0, 16}};
  const DensePageTable t = csr.dense().value();
  EXPECT_EQ(t.stride, 3);
  EXPECT_THAT(t.page_table, ElementsAre(7, 2, 9, -1, -1, -1, 7, 7, -1));
  EXPECT_THAT(t.lengths, ElementsAre(33, 0, 32));
  EXPECT_THAT((Csr{{0}, {}, {}}.dense().value().lengths), ElementsAre());
  EXPECT_EQ((Csr{{0, 0}, {}, {0}}.dense().value().stride), 1);
  for (std::int64_t size = 1; size <= 256; ++size) {
    const auto last = static_cast<std::int32_t>(size);
    EXPECT_EQ((Csr{{0, 2}, {0, 1}, {last}}.dense(2, size).value().lengths[0]), 2 * size);
    EXPECT_FALSE((Csr{{0, 2}, {0, 1}, {last + 1}}.dense(2, size).ok()));
  }
}

TEST(PageTable, RefusesWithReasons) {
  EXPECT_THAT((Csr{{0, 1}, {3}, {0}}.refused()), HasSubstr("last_page_len[0] is 0; it must be in 1..16"));
  EXPECT_THAT((Csr{{0, 1}, {3}, {17}}.refused()), HasSubstr("last_page_len[0] is 17"));
  EXPECT_THAT((Csr{{0, 1}, {3}, {-1}}.refused()), HasSubstr("last_page_len[0] is -1"));
  EXPECT_THAT((Csr{{0, 0}, {3}, {4}}.refused()), HasSubstr("has no pages"));
  EXPECT_THAT((Csr{{0, 2, 1}, {3, 4}, {1, 1}}.refused()), HasSubstr("falls from 2 to 1 at 2"));
  EXPECT_THAT((Csr{{1, 2}, {3, 4}, {1}}.refused()), HasSubstr("indptr[0] is 1"));
  EXPECT_THAT((Csr{{0, 1}, {3}, {1, 1}}.refused()), HasSubstr("last_page_len has 2 entries"));
  EXPECT_THAT((Csr{{}, {}, {}}.refused()), HasSubstr("indptr is empty"));
  EXPECT_THAT((Csr{{0, 3}, {3, 4}, {1}}.refused(StatusCode::out_of_range)), HasSubstr("indices has 2 entries"));
  EXPECT_THAT((Csr{{0, 2}, {3, 10}, {1}}.refused(StatusCode::out_of_range)), HasSubstr("indices[1] is 10; page ids"));
  EXPECT_THAT((Csr{{0, 1}, {-1}, {1}}.refused(StatusCode::out_of_range)), HasSubstr("[0, 10)"));
  EXPECT_FALSE((Csr{{0, 1}, {0}, {1}}.dense(1, 0).ok()));
  // Three such pages would pass 64 bits.
  EXPECT_FALSE((Csr{{0, 3}, {0, 0, 0}, {1}}.dense(1, INT64_MAX).ok()));
  EXPECT_FALSE((Csr{{0, 1}, {0}, {1}}.dense(INT64_MAX, 16).ok()));
}

}  // namespace
}  // namespace mpfa::test
