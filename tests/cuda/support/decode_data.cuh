// Paged caches filled on the device, and attention over them in float64, for DecodeCase.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

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
  bool forgets = false;                       // tokens and pages before the window are gone
  bool verify = true;                         // take the verify kernel where there is one
  bool means = false;                         // of K and V, but that of K of every third sequence, and that of V
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

/// One thread for every scale block of K or of V. Only the last `kept` tokens are written.
__global__ void fill_pool(Pool pool, bool key, Data data, const std::int64_t* lengths, std::int64_t kept,
                          const std::int32_t* table, std::int64_t table_stride, std::uint64_t seed) {
  const PoolOperand& o = key ? pool.k : pool.v;
  const std::int64_t token = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  const std::int32_t b = blockIdx.y, head = blockIdx.z / o.blocks, block = blockIdx.z % o.blocks;
  if (token >= lengths[b] || token < lengths[b] - kept) return;
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
  const float *k_mean, *v_mean;  // [batch, kv_heads, d] or null
  double* scores;                // [rows, max_kv]
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
  const auto mean_of = [&](const float* means, int c) {
    return means == nullptr ? 0.0F : means[(b * r.pool.kv_heads + head) * d + c];
  };
  for (std::int64_t j = begin + threadIdx.x; j < end; j += blockDim.x) {
    double s = 0.0;
    for (int c = 0; c < d; ++c) {
      const double q = r.q_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(r.q)[row * d + c])
                                : __half2float(static_cast<const __half*>(r.q)[row * d + c]);
      s += q * (read_element(r.pool.k, page_of(j), row_of(j), head, c) + mean_of(r.k_mean, c));
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
      o += exp(scores[j] - top) * (read_element(r.pool.v, page_of(j), row_of(j), head, c) + mean_of(r.v_mean, c));
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

}  // namespace mpfa::test
