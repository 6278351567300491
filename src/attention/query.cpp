#include "attention/query.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "attention/sequences.hpp"
#include "cache/convert.hpp"
#include "cache/hadamard.hpp"

namespace mpfa {
namespace {

/// Means of the rows of each block [blocks, d]; sums in double so that the float32 mean has one value.
std::vector<float> block_means(const std::vector<float>& q, std::int64_t rows, std::int64_t d) {
  const std::int64_t blocks = (rows + kQueryBlock - 1) / kQueryBlock;
  std::vector<float> means(static_cast<std::size_t>(blocks * d));
  for (std::int64_t m = 0; m < blocks; ++m) {
    const std::int64_t end = std::min(rows, (m + 1) * kQueryBlock);
    const std::int64_t begin = m * kQueryBlock;
    for (std::int64_t c = 0; c < d; ++c) {
      double sum = 0.0;
      for (std::int64_t i = begin; i < end; ++i) sum += q[i * d + c];
      means[m * d + c] = static_cast<float>(sum / static_cast<double>(end - begin));
    }
  }
  return means;
}

/// x -> round_trip(x), and for two terms + round_trip(x - round_trip(x)). One head in call order.
std::vector<float> quantise_rows(const Recipe& r, const std::vector<float>& x, std::int64_t rows, std::int64_t d) {
  std::vector<float> sum(x.size());
  round_trip_tokens(r.q, d, rows, x.data(), d, sum.data(), d, nullptr);
  if (r.q_terms == 1) return sum;
  std::vector<float> rest(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) rest[i] = x[i] - sum[i];
  std::vector<float> second(x.size());
  round_trip_tokens(r.q, d, rows, rest.data(), d, second.data(), d, nullptr);
  for (std::size_t i = 0; i < x.size(); ++i) sum[i] += second[i];
  return sum;
}

}  // namespace

QueryHead prepare_query_rows(const AttentionProblem& problem, std::vector<float> q, const float* q_mean,
                             const float* k_mean) {
  const std::int64_t d = problem.head_dim;
  const auto rows = static_cast<std::int64_t>(q.size()) / d;
  const Recipe& r = problem.recipe;
  QueryHead head;
  head.rows = rows;
  head.shift.assign(static_cast<std::size_t>(rows), 0.0);
  if (k_mean != nullptr) {
    for (std::int64_t i = 0; i < rows; ++i) {
      double dot = 0.0;
      for (std::int64_t c = 0; c < d; ++c) dot += static_cast<double>(q[i * d + c]) * k_mean[c];
      head.shift[i] = static_cast<double>(softmax_scale(problem)) * dot;
    }
  }

  std::vector<float> centred = q;
  const bool by_block = r.q_centre == QCentre::block;
  if (by_block) head.block_mean = block_means(q, rows, d);
  if (by_block || q_mean != nullptr) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* a = by_block ? head.block_mean.data() + i / kQueryBlock * d : q_mean;
      for (std::int64_t c = 0; c < d; ++c) centred[i * d + c] -= a[c];
    }
  }
  head.wide = std::move(q);
  if (r.rotate != Rotate::none) {
    hadamard_rows(head.wide.data(), rows, d, d);
    hadamard_rows(centred.data(), rows, d, d);
    hadamard_rows(head.block_mean.data(), static_cast<std::int64_t>(head.block_mean.size()) / d, d, d);
  }
  head.quantised = quantise_rows(r, centred, rows, d);
  return head;
}

QueryHead prepare_query(const AttentionProblem& problem, const AttentionTensors& tensors, std::int64_t b,
                        std::int64_t h) {
  const std::int64_t d = problem.head_dim;
  const std::int64_t rows = query_rows(tensors, b).count;
  std::vector<float> q(static_cast<std::size_t>(rows * d));
  for (std::int64_t i = 0; i < rows; ++i) {
    load_row(tensors.q.data, tensors.q.dtype, row_offset(tensors.q, tensors, b, i, h), tensors.q.stride[3], d,
             q.data() + i * d);
  }
  const float* q_mean = nullptr;
  const float* k_mean = nullptr;
  if (tensors.cache.sequences != nullptr) {
    const SequenceView& s = tensors.cache.sequences[b];
    const QCentre centre = problem.recipe.q_centre;
    const std::int64_t g = h / (problem.q_heads / problem.kv_heads);
    const bool centred = centre == QCentre::mean || centre == QCentre::fixed;
    if (centred && s.q_mean != nullptr) q_mean = s.q_mean + h * d;
    if (s.k_mean != nullptr) k_mean = s.k_mean + g * d;
  }
  return prepare_query_rows(problem, std::move(q), q_mean, k_mean);
}

}  // namespace mpfa
