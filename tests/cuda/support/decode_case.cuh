// A paged cache made on the device, and attention over it in float64: what the decode kernel is checked against.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "cuda/sm90/decode/launch.h"
#include "cuda/sm90/verify/shapes.h"
#include "tests/cuda/support/cache_format.cuh"

namespace mpfa::test {

inline void require(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(e));
  std::exit(1);
}

/// Device memory of n values.
template <class T>
class Device {
 public:
  Device() = default;
  explicit Device(std::size_t n) : n_(n) { require(cudaMalloc(&p_, (n > 0 ? n : 1) * sizeof(T)), "cudaMalloc"); }
  explicit Device(const std::vector<T>& v) : Device(v.size()) {
    require(cudaMemcpy(p_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
  }
  Device(const Device&) = delete;
  Device& operator=(Device&& o) noexcept {
    std::swap(p_, o.p_), std::swap(n_, o.n_);
    return *this;
  }
  Device(Device&& o) noexcept { *this = std::move(o); }
  ~Device() { cudaFree(p_); }
  [[nodiscard]] T* get() const { return p_; }
  [[nodiscard]] std::size_t bytes() const { return n_ * sizeof(T); }
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> v(n_);
    require(cudaMemcpy(v.data(), p_, n_ * sizeof(T), cudaMemcpyDeviceToHost), "copy from the device");
    return v;
  }

 private:
  T* p_ = nullptr;
  std::size_t n_ = 0;
};

enum class Data : int { gaussian, k_bias, sink_token, heavy_tail };
// tree: rows see all keys but the last sq, and of those their ancestors and themselves. random: two of three keys.
enum class MaskData : int { none, tree, random };

struct CaseShape {
  const char *k = "mxfp4", *v = "mxfp4";  // formats
  std::int32_t head_dim = 128, batch = 1, q_heads = 32, kv_heads = 8, sq = 1, page_size = 64;
  std::vector<std::int64_t> lengths{1};
  std::int32_t max_kv = 0;  // 0: the longest
  Data data = Data::gaussian;
  bool shuffle = true, causal = false, q_bf16 = true, sinks = false;
  std::int32_t window_left = -1, window_right = -1, fixed_split_keys = 0;
  float softcap = 0.0F;
  MaskData mask = MaskData::none;
  bool additive = false, mask_heads = false;  // f32 instead of u8; a mask for every head
  bool verify = true;                         // take the verify kernel where there is one
};

namespace detail {

__host__ __device__ inline std::uint32_t mix(std::uint64_t x) {
  x ^= x >> 33, x *= 0xFF51AFD7ED558CCDULL, x ^= x >> 33, x *= 0xC4CEB9FE1A85EC53ULL, x ^= x >> 33;
  return static_cast<std::uint32_t>(x);
}
__device__ inline float normal(std::uint64_t i) {
  const float u = (static_cast<float>(mix(2 * i)) + 1.0F) * 0x1p-32F, v = static_cast<float>(mix(2 * i + 1)) * 0x1p-32F;
  return sqrtf(-2.0F * logf(u)) * cospif(2.0F * v);
}
__device__ inline float element(Data data, std::uint64_t i, std::int64_t token, int channel, bool key) {
  const float x = normal(i);
  if (data == Data::heavy_tail) {
    const float a = normal(i + (1ULL << 50)), b = normal(i + (1ULL << 51)), c = normal(i + (1ULL << 52));
    return x / sqrtf((a * a + b * b + c * c) / 3.0F + 1e-6F);
  }
  if (data == Data::k_bias && key && channel == 5) return x + 300.0F;
  if (data == Data::sink_token && key && token == 0) return x + 4.0F;
  return x;
}

struct Pool {
  std::uint8_t* bytes;
  std::int64_t page_bytes;
  std::int32_t head_dim, kv_heads, page_size;
  PoolOperand k, v;
};

/// One thread for every scale block of K or of V.
__global__ void fill_pool(Pool pool, bool key, Data data, const std::int64_t* lengths, const std::int32_t* table,
                          std::int64_t table_stride, std::uint64_t seed) {
  const PoolOperand& o = key ? pool.k : pool.v;
  const std::int64_t token = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  const std::int32_t b = blockIdx.y, head = blockIdx.z / o.blocks, block = blockIdx.z % o.blocks;
  if (token >= lengths[b]) return;
  std::uint8_t* page = pool.bytes + table[b * table_stride + token / pool.page_size] * pool.page_bytes;
  const std::int64_t row = head * pool.page_size + token % pool.page_size;
  const std::uint64_t at =
      seed + ((((static_cast<std::uint64_t>(b) << 32) + token) * pool.kv_heads + head) * 2 + key) * pool.head_dim;
  const int first = block * o.block, end = min(first + o.block, pool.head_dim);
  const bool zero = o.format.scale == ScaleType::f32 && (token + block) % 16 == 5;
  const auto value = [&](int channel) { return zero ? 0.0F : element(data, at + channel, token, channel, key); };
  float largest = 0.0F;
  for (int c = first; c < end; ++c) largest = fmaxf(largest, fabsf(value(c)));
  const float factor =
      write_scale(o.format, largest, head, page + o.scales + row * o.scale_bytes() + block * o.scale_size);
  for (int c = first; c < end; ++c) write_element(o, page + o.data + row * o.row_bytes, c, value(c) / factor);
}

struct Reference {
  Pool pool;
  const std::int64_t* lengths;
  const std::int32_t* table;
  std::int64_t table_stride;
  const void* q;
  bool q_bf16, causal;
  std::int32_t sq, q_heads, window_left, window_right;
  float scale, softcap;
  const float* sinks;
  const void* mask;  // [batch, mask_heads, sq, max_kv] or null
  bool additive;
  std::int32_t mask_heads;
  double* scores;  // [rows, max_kv]
  std::int64_t max_kv;
  double* out;  // [batch, sq, q_heads, d]
  double* lse;  // [batch, q_heads, sq]
};

/// Element (b, h, i, key) of a mask [batch, heads, sq, max_kv] with block (b * heads + h) * sq + i.
__global__ void fill_mask(void* mask, MaskData kind, bool additive, std::int32_t heads, std::int32_t sq,
                          std::int64_t max_kv, const std::int64_t* lengths) {
  const std::int64_t row = blockIdx.x, first = lengths[row / sq / heads] - sq;
  for (std::int64_t key = threadIdx.x; key < max_kv; key += blockDim.x) {
    const std::int64_t node = key - first;
    const std::uint32_t random = mix(static_cast<std::uint64_t>(row * max_kv + key));
    bool sees = kind == MaskData::random ? random % 3 != 0 : node < 0;
    for (std::int64_t at = row % sq; kind == MaskData::tree && !sees && at >= 0; at = at == 0 ? -1 : (at - 1) / 2) {
      sees = at == node;
    }
    const float added = kind == MaskData::random ? static_cast<float>(random >> 8) * 0x1p-23F - 1.0F : 0.0F;
    if (additive) static_cast<float*>(mask)[row * max_kv + key] = sees ? added : -INFINITY;
    if (!additive) static_cast<std::uint8_t*>(mask)[row * max_kv + key] = sees ? 1 + random % 255 : 0;
  }
}

/// Block (b * sq + i) * q_heads + h. Written to be read, not to be fast.
__global__ void attend_f64(Reference r) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t h = row % r.q_heads, i = row / r.q_heads % r.sq;
  const std::int64_t b = row / r.q_heads / r.sq, length = r.lengths[b], position = i + length - r.sq;
  const std::int32_t head = h / (r.q_heads / r.pool.kv_heads), d = r.pool.head_dim;
  std::int64_t begin = 0, end = length;
  if (r.causal) end = min(end, position + 1);
  if (r.window_right >= 0) end = min(end, position + r.window_right + 1);
  if (r.window_left >= 0) begin = max(begin, position - r.window_left);
  __shared__ double top, sum;
  double* scores = r.scores + row * r.max_kv;
  const auto page_of = [&](std::int64_t j) {
    return r.pool.bytes + r.table[b * r.table_stride + j / r.pool.page_size] * r.pool.page_bytes;
  };
  const auto row_of = [&](std::int64_t j) { return head * r.pool.page_size + j % r.pool.page_size; };
  for (std::int64_t j = begin + threadIdx.x; j < end; j += blockDim.x) {
    double s = 0.0;
    for (int c = 0; c < d; ++c) {
      const double q = r.q_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(r.q)[row * d + c])
                                : __half2float(static_cast<const __half*>(r.q)[row * d + c]);
      s += q * read_element(r.pool.k, page_of(j), row_of(j), head, c);
    }
    s *= r.scale;
    if (r.softcap > 0.0F) s = r.softcap * tanh(s / r.softcap);
    const std::int64_t at = ((b * r.mask_heads + h % r.mask_heads) * r.sq + i) * r.max_kv + j;
    if (r.mask != nullptr && r.additive) s += static_cast<const float*>(r.mask)[at];
    if (r.mask != nullptr && !r.additive && static_cast<const std::uint8_t*>(r.mask)[at] == 0) s = -HUGE_VAL;
    scores[j] = s;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    top = r.sinks != nullptr ? r.sinks[h] : -HUGE_VAL;
    for (std::int64_t j = begin; j < end; ++j) top = fmax(top, scores[j]);
    sum = r.sinks != nullptr ? exp(r.sinks[h] - top) : 0.0;
    if (top == -HUGE_VAL) top = 0.0;  // no key is seen
    for (std::int64_t j = begin; j < end; ++j) sum += exp(scores[j] - top);
    r.lse[(b * r.q_heads + h) * r.sq + i] = sum > 0.0 ? top + log(sum) : -HUGE_VAL;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < d; c += blockDim.x) {
    double o = 0.0;
    for (std::int64_t j = begin; j < end; ++j) {
      o += exp(scores[j] - top) * read_element(r.pool.v, page_of(j), row_of(j), head, c);
    }
    r.out[row * d + c] = sum > 0.0 ? o / sum : 0.0;
  }
}

__global__ void fill_queries(void* q, bool bf16, std::int64_t n, std::uint64_t seed) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  const float x = normal(seed + i);
  if (bf16) static_cast<__nv_bfloat16*>(q)[i] = __float2bfloat16_rn(x);
  if (!bf16) static_cast<__half*>(q)[i] = __float2half_rn(x);
}

}  // namespace detail

class DecodeCase {
 public:
  explicit DecodeCase(const CaseShape& shape, std::uint64_t seed = 1) : shape_(shape) {
    const CaseShape& s = shape_;
    std::int64_t longest = 1;
    for (const std::int64_t n : s.lengths) longest = std::max(longest, n);
    if (shape_.max_kv == 0) shape_.max_kv = static_cast<std::int32_t>(longest);
    const std::int64_t columns = (shape_.max_kv + s.page_size - 1) / s.page_size;
    std::vector<std::int32_t> ids, table(static_cast<std::size_t>(s.batch * columns), -7);
    for (std::int32_t b = 0; b < s.batch; ++b) {
      for (std::int64_t i = 0; i * s.page_size < s.lengths[b]; ++i) {
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
      detail::fill_pool<<<grid, 128>>>(pool_, key, s.data, lengths_.get(), table_.get(), table_stride_, seed << 56);
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
    launch_shape_.verify = s.verify && sm90::has_verify_pages(s.page_size) &&
                           sm90::has_verify_format(pool_.k.format, pool_.k.scale_bytes()) &&
                           sm90::has_verify_format(pool_.v.format, pool_.v.scale_bytes());
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
    for (const std::int64_t n : shape_.lengths) tokens += static_cast<double>(n);
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
    const detail::Reference r{pool_,          lengths_.get(),
                              table_.get(),   table_stride_,
                              q_.get(),       s.q_bf16,
                              s.causal,       s.sq,
                              s.q_heads,      s.window_left,
                              s.window_right, scale(),
                              s.softcap,      s.sinks ? sinks_.get() : nullptr,
                              mask_.get(),    s.additive,
                              mask_heads(),   scores.get(),
                              s.max_kv,       out.get(),
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
  Device<float> sinks_, out_, lse_, head_scales_;
  sm90::DecodeShape launch_shape_;
  sm90::DecodeLaunch launch_;
};

}  // namespace mpfa::test
