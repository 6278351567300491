// A paged cache made on the device, and attention over it in float64: what the decode kernel is checked against.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cuda/sm90/decode/launch.h"
#include "cuda/sm90/verify/shapes.h"
#include "tests/cuda/support/decode_data.cuh"

namespace mpfa::test {

class DecodeCase {
 public:
  explicit DecodeCase(const CaseShape& shape, std::uint64_t seed = 1) : shape_(shape) {
    const CaseShape& s = shape_;
    std::int64_t longest = 1;
    for (const std::int64_t n : s.lengths) longest = std::max(longest, n);
    if (shape_.max_kv == 0) shape_.max_kv = static_cast<std::int32_t>(longest);
    const std::int64_t columns = (shape_.max_kv + s.page_size - 1) / s.page_size;
    const std::int64_t kept = s.forgets ? s.window_left + s.sq : shape_.max_kv;
    std::vector<std::int32_t> ids, table(static_cast<std::size_t>(s.batch * columns), -7);
    for (std::int32_t b = 0; b < s.batch; ++b) {
      // Of a window whole tiles are read.
      const std::int64_t first = std::max<std::int64_t>(s.lengths[b] - kept, 0) / sm90::kTileKeys * sm90::kTileKeys;
      for (std::int64_t i = first / s.page_size; i * s.page_size < s.lengths[b]; ++i) {
        table[b * columns + i] = static_cast<std::int32_t>(ids.size());
        ids.push_back(static_cast<std::int32_t>(ids.size()));
      }
    }
    std::mt19937 random(static_cast<unsigned>(seed));
    if (s.shuffle) std::shuffle(ids.begin(), ids.end(), random);
    for (std::int32_t& id : table) id = id < 0 ? id : ids[id];
    const CacheFormat &k = cache_format(s.k), &v = cache_format(s.v);
    pool_.head_dim = s.head_dim, pool_.kv_heads = s.kv_heads, pool_.page_size = s.page_size;
    pool_.k = PoolOperand(k.format, s.head_dim), pool_.v = PoolOperand(v.format, s.head_dim);
    const std::int64_t rows = static_cast<std::int64_t>(s.kv_heads) * s.page_size;
    const auto place = [&](std::int64_t& offset, std::int64_t row_bytes) {
      offset = pool_.page_bytes;
      pool_.page_bytes += (rows * row_bytes + 63) / 64 * 64;
    };
    place(pool_.k.data, pool_.k.row_bytes), place(pool_.v.data, pool_.v.row_bytes);
    place(pool_.k.scales, pool_.k.scale_bytes()), place(pool_.v.scales, pool_.v.scale_bytes());
    num_pages_ = static_cast<std::int32_t>(ids.size());
    bytes_ = Device<std::uint8_t>(static_cast<std::size_t>(std::max(num_pages_, 1)) * pool_.page_bytes);
    pool_.bytes = bytes_.get();
    // Everything that no token writes is NaN: scales 0xFF, and page ids past a length are out of range.
    require(cudaMemset(pool_.bytes, 0xFF, bytes_.bytes()), "cudaMemset");
    table_ = Device<std::int32_t>(table);
    table_stride_ = columns;
    lengths_ = Device<std::int64_t>(s.lengths);
    for (const bool key : {true, false}) {
      const dim3 grid((longest + 127) / 128, s.batch, s.kv_heads * (key ? pool_.k : pool_.v).blocks);
      detail::fill_pool<<<grid, 128>>>(pool_, key, s.data, lengths_.get(), kept, table_.get(), table_stride_,
                                       seed << 56);
      require(cudaGetLastError(), "fill_pool");
    }
    std::vector<float> head_scales(s.kv_heads);
    for (std::int32_t h = 0; h < s.kv_heads; ++h) head_scales[h] = head_scale(h);
    head_scales_ = Device<float>(head_scales);
    q_ = Device<std::uint16_t>(rows_total() * s.head_dim);
    const auto n = static_cast<std::int64_t>(rows_total() * s.head_dim);
    detail::fill_queries<<<(n + 255) / 256, 256>>>(q_.get(), s.q_bf16, n, seed * 77777);
    require(cudaGetLastError(), "fill_queries");
    std::vector<float> sinks(s.q_heads);
    for (float& x : sinks) x = std::normal_distribution<float>()(random);
    sinks_ = Device<float>(sinks);
    if (s.means) make_means(random);
    if (s.mask != MaskData::none) {
      const std::int32_t rows = s.batch * mask_heads() * s.sq;
      mask_ = Device<std::uint8_t>(static_cast<std::size_t>(rows) * shape_.max_kv * mask_bytes());
      detail::fill_mask<<<rows, 256>>>(mask_.get(), s.mask, s.additive, mask_heads(), s.sq, shape_.max_kv,
                                       lengths_.get());
      require(cudaGetLastError(), "fill_mask");
    }
    out_ = Device<float>(rows_total() * s.head_dim);
    lse_ = Device<float>(rows_total());
    int device = 0, multiprocessors = 0;
    require(cudaGetDevice(&device), "cudaGetDevice");
    require(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "attribute");
    launch_shape_ = {s.head_dim, {k.operand, v.operand}, s.batch,           s.kv_heads, s.q_heads / s.kv_heads,
                     s.sq,       shape_.max_kv,          s.fixed_split_keys};
    launch_shape_.window_left = s.window_left;
    launch_shape_.verify = s.verify && sm90::has_verify_pages(s.page_size) &&
                           sm90::has_verify_format(pool_.k.format, s.head_dim, pool_.k.scale_bytes()) &&
                           sm90::has_verify_format(pool_.v.format, s.head_dim, pool_.v.scale_bytes());
    launch_shape_.masked = s.mask != MaskData::none || s.softcap > 0.0F;
    launch_ = sm90::plan_decode(launch_shape_, multiprocessors);
    workspace_ = Device<std::uint8_t>(launch_.workspace_bytes);
    require(cudaMemset(workspace_.get(), 0xFF, workspace_.bytes()), "cudaMemset");
  }

  [[nodiscard]] const CaseShape& shape() const { return shape_; }
  [[nodiscard]] const sm90::DecodeLaunch& launch() const { return launch_; }
  [[nodiscard]] std::size_t rows_total() const {
    return static_cast<std::size_t>(shape_.batch) * shape_.sq * shape_.q_heads;
  }
  /// Bytes that a perfect kernel reads.
  [[nodiscard]] double cache_bytes() const {
    double tokens = 0;
    const std::int64_t seen = shape_.window_left < 0 ? shape_.max_kv : shape_.window_left + shape_.sq;
    for (const std::int64_t n : shape_.lengths) tokens += static_cast<double>(std::min(n, seen));
    return tokens * shape_.kv_heads *
           (pool_.k.row_bytes + pool_.k.scale_bytes() + pool_.v.row_bytes + pool_.v.scale_bytes());
  }
  void set_lengths(const std::vector<std::int64_t>& lengths) {
    shape_.lengths = lengths;
    require(cudaMemcpy(lengths_.get(), lengths.data(), lengths.size() * 8, cudaMemcpyHostToDevice), "lengths");
  }

  void run(cudaStream_t stream, int out_type = 0) const {
    const CaseShape& s = shape_;
    sm90::DecodeParams p{};
    p.q = q_.get();
    p.q_head = s.head_dim, p.q_row = static_cast<std::int64_t>(s.q_heads) * s.head_dim, p.q_batch = p.q_row * s.sq;
    p.out = out_.get();
    p.out_head = p.q_head, p.out_row = p.q_row, p.out_batch = p.q_batch;
    p.lse = lse_.get();
    p.lse_rows = s.sq;
    p.lengths = lengths_.get();
    p.page_table = table_.get();
    p.page_table_stride = table_stride_;
    p.sequences = s.means ? sequences_.get() : nullptr;
    p.sinks = s.sinks ? sinks_.get() : nullptr;
    if (s.mask != MaskData::none) {
      p.mask.data = mask_.get(), p.mask.additive = s.additive ? 1 : 0, p.mask.key = mask_bytes();
      p.mask.row = static_cast<std::int64_t>(s.max_kv) * mask_bytes();
      p.mask.head = s.mask_heads ? p.mask.row * s.sq : 0, p.mask.batch = p.mask.row * s.sq * mask_heads();
    }
    p.k = pages(pool_.k), p.v = pages(pool_.v);
    p.batch = s.batch, p.kv_heads = s.kv_heads, p.q_heads = s.q_heads, p.group = s.q_heads / s.kv_heads, p.sq = s.sq;
    p.num_pages = num_pages_, p.page_size = s.page_size, p.max_kv = s.max_kv;
    p.window_left = s.window_left, p.window_right = s.window_right, p.causal = s.causal ? 1 : 0;
    p.q_bf16 = s.q_bf16 ? 1 : 0, p.out_type = out_type, p.p_unit = 1.0F;
    const bool whole = s.head_dim == sm90::kernel_head_dim(s.head_dim);
    p.plain_keys = whole ? sm90::plain_keys(s.page_size) : 0;
    p.scale = scale(), p.softcap = s.softcap;
    p.page_div = make_divisor(s.page_size), p.group_div = make_divisor(p.group);
    require(sm90::launch_decode(launch_shape_, launch_, p, workspace_.get(), stream), "launch_decode");
  }

  struct Errors {
    double out = 0.0, lse = 0.0;  // relative L2; largest difference
  };
  /// Runs the kernel on poisoned outputs and compares.
  [[nodiscard]] Errors check() const {
    const CaseShape& s = shape_;
    require(cudaMemset(out_.get(), 0xFF, out_.bytes()), "cudaMemset");
    require(cudaMemset(lse_.get(), 0xFF, lse_.bytes()), "cudaMemset");
    run(nullptr);
    require(cudaDeviceSynchronize(), "decode");
    Device<double> scores(rows_total() * s.max_kv), out(rows_total() * s.head_dim), lse(rows_total());
    const detail::Reference r{pool_,
                              lengths_.get(),
                              table_.get(),
                              table_stride_,
                              q_.get(),
                              s.q_bf16,
                              s.causal,
                              s.sq,
                              s.q_heads,
                              s.window_left,
                              s.window_right,
                              scale(),
                              s.softcap,
                              s.sinks ? sinks_.get() : nullptr,
                              mask_.get(),
                              s.additive,
                              mask_heads(),
                              s.means ? k_mean_.get() : nullptr,
                              s.means ? v_mean_.get() : nullptr,
                              scores.get(),
                              s.max_kv,
                              out.get(),
                              lse.get()};
    detail::attend_f64<<<rows_total(), 128>>>(r);
    require(cudaDeviceSynchronize(), "attend_f64");
    const std::vector<double> expected = out.host(), expected_lse = lse.host();
    const std::vector<float> actual = out_.host(), actual_lse = lse_.host();
    Errors e;
    double error = 0.0, size = 1e-300;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
      size += expected[i] * expected[i];
    }
    e.out = std::sqrt(error / size);
    for (std::size_t i = 0; i < expected_lse.size(); ++i) {
      const bool same = expected_lse[i] == actual_lse[i];
      const double difference = same ? 0.0 : std::abs(actual_lse[i] - expected_lse[i]);
      if (!(difference <= e.lse)) e.lse = difference;
    }
    return e;
  }

 private:
  void make_means(std::mt19937& random) {
    const auto row = static_cast<std::size_t>(shape_.kv_heads) * shape_.head_dim;
    std::vector<SequenceView> sequences(static_cast<std::size_t>(shape_.batch));
    const auto make = [&](Device<float>& means, const float* SequenceView::*mean, std::size_t without) {
      std::vector<float> values(sequences.size() * row, 0.0F);
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i / row % 3 != without) values[i] = std::normal_distribution<float>()(random);
      }
      means = Device<float>(values);
      for (std::size_t b = 0; b < sequences.size(); ++b) {
        if (b % 3 != without) sequences[b].*mean = means.get() + b * row;
      }
    };
    make(k_mean_, &SequenceView::k_mean, 1), make(v_mean_, &SequenceView::v_mean, 2);
    sequences_ = Device<SequenceView>(sequences);
  }
  [[nodiscard]] std::int32_t mask_heads() const { return shape_.mask_heads ? shape_.q_heads : 1; }
  [[nodiscard]] std::int32_t mask_bytes() const { return shape_.additive ? 4 : 1; }
  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)); }
  [[nodiscard]] sm90::DecodePages pages(const PoolOperand& o) const {
    sm90::DecodePages p{};
    p.data = pool_.bytes + o.data;
    p.scales = o.scale_size > 0 ? pool_.bytes + o.scales : nullptr;
    p.global = o.format.rule == ScaleRule::fixed ? head_scales_.get() : nullptr;
    p.data_head = static_cast<std::int64_t>(shape_.page_size) * o.row_bytes;
    p.scale_head = static_cast<std::int64_t>(shape_.page_size) * o.scale_bytes();
    p.data_page = p.scale_page = static_cast<std::int32_t>(pool_.page_bytes);
    p.data_row = o.row_bytes, p.scale_row = o.scale_bytes();
    sm90::set_scale_groups(o.format, shape_.head_dim, p);
    return p;
  }

  CaseShape shape_;
  detail::Pool pool_{};
  std::int32_t num_pages_ = 0;
  std::int64_t table_stride_ = 0;
  Device<std::uint8_t> bytes_, mask_, workspace_;
  Device<std::int32_t> table_;
  Device<std::int64_t> lengths_;
  Device<std::uint16_t> q_;
  Device<float> sinks_, out_, lse_, head_scales_, k_mean_, v_mean_;
  Device<SequenceView> sequences_;
  sm90::DecodeShape launch_shape_;
  sm90::DecodeLaunch launch_;
};

}  // namespace mpfa::test
