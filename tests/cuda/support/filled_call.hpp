// A call that asks for any feature of the support matrix, with copies of all its host data in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "tests/support/filled.hpp"

namespace mpfa::test {

inline void require(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
}

class FilledCall {
 public:
  explicit FilledCall(Filled& filled) : problem_(filled.problem), tensors_(filled.tensors) {
    const AttentionProblem& p = problem_;
    AttentionTensors& t = tensors_;
    rows_ = t.q.shape[0] * t.q.shape[1] * p.q_heads;
    t.q.data = bytes(t.q.data, rows_ * p.head_dim * static_cast<std::int64_t>(dtype_bytes(p.q_dtype)));
    copy_cache(filled.cache);
    t.sinks = copy(t.sinks, p.q_heads);
    t.alibi_slopes = copy(t.alibi_slopes, p.q_heads);
    t.cu_seqlens_q = copy(t.cu_seqlens_q, p.batch + 1);
    const auto& m = t.mask.shape;
    t.mask.data = bytes(t.mask.data, m[0] * m[1] * m[2] * m[3] * static_cast<std::int64_t>(dtype_bytes(t.mask.dtype)));
    out_bytes_ = rows_ * p.head_dim_v * static_cast<std::int64_t>(dtype_bytes(p.out_dtype));
    t.out = contiguous(allocate(out_bytes_), p.out_dtype, {t.q.shape[0], t.q.shape[1], p.q_heads, p.head_dim_v});
    t.lse = static_cast<float*>(allocate(rows_ * 4));
  }

  /// Plans, attends and waits; outputs and workspace begin as NaN.
  Status run() {
    Result<Plan> made = plan(problem_, Device::sm90);
    if (!made.ok()) return made.status();
    const std::size_t size = made.value().workspace_bytes;
    MPFA_RETURN_IF_ERROR(attend(made.value(), tensors_, {allocate(static_cast<std::int64_t>(size)), size}));
    require(cudaDeviceSynchronize());
    return {};
  }
  /// Rows in call order.
  [[nodiscard]] std::vector<double> out() const {
    std::vector<std::byte> host(static_cast<std::size_t>(out_bytes_));
    require(cudaMemcpy(host.data(), tensors_.out.data, host.size(), cudaMemcpyDeviceToHost));
    std::vector<double> x(host.size() / dtype_bytes(problem_.out_dtype));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = value_at(host.data(), problem_.out_dtype, i);
    return x;
  }
  /// [rows, q_heads] like the reference's.
  [[nodiscard]] std::vector<double> lse() const {
    std::vector<float> x(static_cast<std::size_t>(rows_));
    require(cudaMemcpy(x.data(), tensors_.lse, x.size() * sizeof(float), cudaMemcpyDeviceToHost));
    std::vector<double> y(x.size());
    const std::int64_t sq = tensors_.q.shape[1], heads = problem_.q_heads;
    for (std::int64_t i = 0; i < rows_; ++i) {
      const std::int64_t row = i / heads;
      y[i] = x[(row / sq * heads + i % heads) * sq + row % sq];
    }
    return y;
  }

 private:
  struct Free {
    void operator()(void* p) const { cudaFree(p); }
  };
  /// Device memory until the end of the call, NaN in every type.
  void* allocate(std::int64_t size) {
    void* p = nullptr;
    const auto n = static_cast<std::size_t>(std::max<std::int64_t>(size, 1));
    require(cudaMalloc(&p, n));
    held_.emplace_back(p);
    require(cudaMemset(p, 0xFF, n));
    return p;
  }
  /// Null stays null.
  const void* bytes(const void* host, std::int64_t size) {
    if (host == nullptr) return nullptr;
    void* const p = allocate(size);
    require(cudaMemcpy(p, host, static_cast<std::size_t>(size), cudaMemcpyHostToDevice));
    return p;
  }
  template <class T>
  const T* copy(const T* host, std::int64_t n) {
    return static_cast<const T*>(bytes(host, n * static_cast<std::int64_t>(sizeof(T))));
  }

  void copy_cache(PagedCache& cache) {
    const AttentionProblem& p = problem_;
    CacheView& v = tensors_.cache;
    const std::byte* const storage = cache.storage();
    const std::byte* const pool = copy(storage, cache.storage_bytes());
    const auto moved = [&](auto* at) {
      using T = std::remove_pointer_t<decltype(at)>;
      return at == nullptr ? nullptr : reinterpret_cast<T*>(pool + (reinterpret_cast<const std::byte*>(at) - storage));
    };
    for (OperandPages* o : {&v.k, &v.v}) {
      o->data = moved(o->data);
      o->scales = moved(o->scales);
      o->global = copy(o->global, p.kv_heads);
    }
    v.v_page_means = moved(v.v_page_means);
    std::vector<SequenceView> sequences(v.sequences, v.sequences + p.batch);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      SequenceView& s = sequences[static_cast<std::size_t>(b)];
      const std::int64_t k_row = p.kv_heads * p.head_dim, v_row = p.kv_heads * p.head_dim_v;
      const std::int64_t wide = v.lengths[b] - s.wide_begin;
      s.k_mean = copy(s.k_mean, k_row);
      s.v_mean = copy(s.v_mean, v_row);
      s.sink_k = copy(s.sink_k, s.sink * k_row);
      s.sink_v = copy(s.sink_v, s.sink * v_row);
      s.wide_k = copy(s.wide_k, wide * k_row);
      s.wide_v = copy(s.wide_v, wide * v_row);
    }
    v.sequences = copy(static_cast<const SequenceView*>(sequences.data()), p.batch);
    v.page_table = copy(v.page_table, p.batch * v.page_table_stride);
    v.lengths = copy(v.lengths, p.batch);
  }

  std::vector<std::unique_ptr<void, Free>> held_;
  AttentionProblem problem_;
  AttentionTensors tensors_;
  std::int64_t rows_ = 0, out_bytes_ = 0;
};

}  // namespace mpfa::test
