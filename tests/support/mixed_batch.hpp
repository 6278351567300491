// A call over some sequences of a cache, in any order: what a scheduler's batch is.
#pragma once

#include <vector>

#include "tests/support/filled.hpp"

namespace mpfa::test {

struct Answer {
  std::vector<double> out, lse;
  bool operator==(const Answer&) const = default;
};

/// Sequences `ids` of a cache, sequence i with rows[i] query rows whose numbers depend on i alone.
class Selection {
 public:
  Selection(const PagedCache& cache, const std::vector<std::int64_t>& ids, const std::vector<std::int64_t>& rows)
      : cache_(cache) {
    const CacheView all = cache.view();
    const CacheConfig& c = cache.config();
    const std::int64_t stride = all.page_table_stride;
    for (const std::int64_t id : ids) {
      table_.insert(table_.end(), all.page_table + id * stride, all.page_table + (id + 1) * stride);
      lengths_.push_back(all.lengths[id]);
      sequences_.push_back(all.sequences[id]);
      cu_.push_back(cu_.back() + rows[id]);
      const Tensor q = normal_from_table({1, rows[id], c.q_heads, c.head_dim}, 100 + static_cast<unsigned>(id));
      q_.data.insert(q_.data.end(), q.data.begin(), q.data.end());
      most_rows_ = std::max(most_rows_, rows[id]);
    }
    q_.shape = {1, cu_.back(), c.q_heads, c.head_dim};
  }
  Selection(const Selection&) = delete;
  Selection& operator=(const Selection&) = delete;

  [[nodiscard]] AttentionProblem problem(int threads, std::int64_t max_kv) const {
    const CacheConfig& c = cache_.config();
    AttentionProblem p;
    p.recipe = c.recipe;
    p.batch = static_cast<std::int64_t>(lengths_.size());
    p.max_q = std::max<std::int64_t>(most_rows_, 1);
    p.total_q = std::max<std::int64_t>(cu_.back(), 1);
    p.max_kv = max_kv;
    p.q_heads = c.q_heads;
    p.kv_heads = c.kv_heads;
    p.head_dim = c.head_dim;
    p.head_dim_v = c.head_dim_v;
    p.page_size = c.page_size;
    p.causal = true;
    p.threads = threads;
    return p;
  }
  [[nodiscard]] AttentionTensors tensors() const {
    AttentionTensors t;
    t.q = q_.view();
    t.cu_seqlens_q = cu_.data();
    t.cache = cache_.view();
    t.cache.page_table = table_.data();
    t.cache.lengths = lengths_.data();
    t.cache.sequences = sequences_.data();
    return t;
  }
  [[nodiscard]] Answer run(const AttentionProblem& p, const Executor& executor = {}) const {
    Answer a;
    const Status s = attend_cpu_on(executor, p, tensors(), a.out, a.lse);
    EXPECT_TRUE(s.ok()) << s.message();
    return a;
  }
  /// The rows of the sequence at place `i` of the selection.
  [[nodiscard]] Answer rows_of(const Answer& all, std::size_t i) const {
    const std::int64_t per_row = q_.shape[2], per_head = cache_.config().head_dim_v;
    return {{all.out.begin() + cu_[i] * per_row * per_head, all.out.begin() + cu_[i + 1] * per_row * per_head},
            {all.lse.begin() + cu_[i] * per_row, all.lse.begin() + cu_[i + 1] * per_row}};
  }

 private:
  const PagedCache& cache_;
  std::vector<std::int32_t> table_;
  std::vector<std::int64_t> lengths_, cu_{0};
  std::vector<SequenceView> sequences_;
  Tensor q_;
  std::int64_t most_rows_ = 0;
};

/// `batch` sequences of different lengths, a few beyond one split, with the rows that a mixed batch has: mostly one,
/// some of a verify step, some of a prompt, none.
struct MixedBatch {
  std::vector<std::int64_t> lengths, rows;
  PagedCache cache;

  MixedBatch(const std::string& text, std::int64_t batch) : cache(make(text, batch)) {}

 private:
  PagedCache make(const std::string& text, std::int64_t batch) {
    CacheConfig c;
    c.recipe = recipe(text);
    c.batch = batch;
    c.page_size = 64;
    c.q_heads = 4;
    c.kv_heads = 2;
    c.head_dim = c.head_dim_v = 32;
    c.threads = 1;
    constexpr std::int64_t kLengths[] = {70, 4097, 1, 129, 64, 0, 300, 8200, 33, 128};
    constexpr std::int64_t kRows[] = {1, 1, 1, 20, 4, 2, 8, 3, 33, 0};
    for (std::int64_t b = 0; b < batch; ++b) {
      lengths.push_back(kLengths[b % 10] + (b >= 10 && b % 10 != 5 ? b % 7 : 0));
      if (b >= 10) lengths.back() %= 400;  // long sequences once
      rows.push_back(kRows[b % 10]);
      c.num_pages += lengths.back() / c.page_size + 1;
    }
    if (c.recipe.centre == Centre::fixed) c.k_mean = gaussian({1, 1, 2, 32}, 21).data;
    if (c.recipe.q_centre == QCentre::fixed) c.q_mean = gaussian({1, 1, 4, 32}, 22).data;
    PagedCache made = PagedCache::create(c).value();
    std::memset(made.storage(), 0xFF, static_cast<std::size_t>(made.storage_bytes()));
    for (std::int32_t b = 0; b < batch; ++b) {
      // The rows' own tokens come last, in a call of their own.
      const std::int64_t last = std::min(rows[b], lengths[b]);
      for (const std::int64_t n : {lengths[b] - last, last}) {
        const unsigned seed = 1000 + 2 * static_cast<unsigned>(b) + (n == last ? 1 : 0);
        const Tensor k = normal_from_table({1, n, 2, 32}, seed), v = normal_from_table({1, n, 2, 32}, seed + 500);
        const Tensor q = normal_from_table({1, n, 4, 32}, seed + 900);
        const TensorView qv = q.view();
        EXPECT_TRUE(made.append(k.view(), v.view(), &qv, &b, nullptr).ok());
      }
    }
    return made;
  }
};

}  // namespace mpfa::test
