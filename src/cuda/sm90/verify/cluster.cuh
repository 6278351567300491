// The end of a piece where neighbouring blocks, which have neighbouring pieces of an output, are a cluster: they merge
// through each other's shared memory, every block its share of the rows. If an output has more pieces than that, what
// clusters have goes to memory, and the last block of a share sums it up.
#pragma once

#include <cstdint>

#include "cuda/sm90/verify/clusters.h"
#include "cuda/sm90/verify/merge.cuh"

namespace mpfa::ptx {

__device__ __forceinline__ float load_remote(std::uint32_t address) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ float4 load_remote_quad(std::uint32_t address) {
  float4 x;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

}  // namespace mpfa::ptx

namespace mpfa::sm90 {

/// The pieces of a cluster.
struct ClusterPlace {
  std::int32_t size, rank, members, clusters;  // blocks, own block, those that have a piece; clusters of the output

  __device__ __forceinline__ ClusterPlace(const DecodeParams& p, const Piece& piece)
      : size(1 << p.cluster_log),
        rank(piece.index % size),
        members(min(size, piece.count - piece.index + rank)),
        clusters((piece.count + size - 1) / size) {}
};

template <class Config>
class ClusterMerge {
 public:
  __device__ __forceinline__ ClusterMerge(const DecodeParams& p, const Sequence& s, const Piece& piece,
                                          const Exchange<Config>& exchange)
      : p_(&p),
        s_(&s),
        piece_(&piece),
        exchange_(exchange),
        at_(p, piece),
        rows_(min(Config::kRows, s.sq * p.group - piece.row_block * Config::kRows)) {}

  /// All threads that multiply, when they have put their outputs into shared memory.
  __device__ __forceinline__ void run() const {
#pragma unroll 1
    for (std::int32_t row = team_warp<Config>(); row < rows_; row += Config::kWarps) merge_own(row);
    ptx::arrive_cluster();
    ptx::wait_cluster();
    // Share q of the rows is block q's, or of a cluster that is not full another block's.
#pragma unroll 1
    for (std::int32_t q = at_.rank; q < at_.size; q += at_.members) {
#pragma unroll 1
      for (std::int32_t row = first_row(q); row < rows_; row += 2 * row_step()) merge_blocks(row);
    }
    ptx::arrive_cluster();
#pragma unroll 1
    for (std::int32_t q = at_.rank; q < at_.size && at_.clusters > 1; q += at_.members) {
      if (!last_of_share(q)) continue;
#pragma unroll 1
      for (std::int32_t row = first_row(q); row < rows_; row += row_step()) merge_clusters(row);
    }
    ptx::wait_cluster();  // others have read what lies here
  }

 private:
  static constexpr int kQuads = Config::kD / 4, kOwn = kQuads > 32 ? kQuads / 32 : 1;  // of a lane: every 32nd

  __device__ __forceinline__ static std::int32_t lane() {
    return static_cast<std::int32_t>(threadIdx.x % 32);
  }
  /// The lane's first quad; of 64 channels both halves of a warp have the same.
  __device__ __forceinline__ static std::int32_t quad() {
    return lane() % kQuads;
  }
  /// Warps take rows of a share by turns.
  __device__ __forceinline__ std::int32_t first_row(std::int32_t share) const {
    return share + team_warp<Config>() * at_.size;
  }
  __device__ __forceinline__ std::int32_t row_step() const {
    return Config::kWarps * at_.size;
  }
  __device__ __forceinline__ static std::uint32_t remote(const void* own, std::int32_t block) {
    return ptx::remote_address(ptx::shared_address(own), static_cast<std::uint32_t>(block));
  }

  /// Sums of a row over the warpgroups of the block, to where the first of them has its own.
  __device__ __forceinline__ void merge_own(std::int32_t row) const {
    float weights[Config::kGroups];
    const float2 all = weigh_groups<Config>(exchange_, row, weights);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float4 x{};
#pragma unroll
      for (int k = 0; k < Config::kGroups; ++k) add_weighted(x, *exchange_.out(k, row, quad() + 32 * i), weights[k]);
      __syncwarp();
      *exchange_.out(0, row, quad() + 32 * i) = x;
    }
    if (lane() == 0) exchange_.max[row] = all.x, exchange_.sum[row] = all.y;
  }

  /// Sums over the blocks of the cluster, of a row and the warp's next one if there is one.
  __device__ __forceinline__ void merge_blocks(std::int32_t first) const {
    constexpr int kRowsTogether = 2;
    float max[kRowsTogether], sum[kRowsTogether];  // of block `lane`
    float4 part[kRowsTogether][kMostBlocks][kOwn];
#pragma unroll
    for (int j = 0; j < kRowsTogether; ++j) {
      const std::int32_t row = first + j * row_step(), members = row < rows_ ? at_.members : 0;
      max[j] = -FLT_MAX, sum[j] = 0.0F;
      if (lane() < members) {
        max[j] = ptx::load_remote(remote(exchange_.max + row, lane()));
        sum[j] = ptx::load_remote(remote(exchange_.sum + row, lane()));
      }
#pragma unroll
      for (int k = 0; k < kMostBlocks; ++k) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          part[j][k][i] = k < members ? ptx::load_remote_quad(remote(exchange_.out(0, row, quad() + 32 * i), k))
                                      : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kRowsTogether; ++j) {
      const std::int32_t row = first + j * row_step();
      if (row >= rows_) continue;
      const float2 all = weigh(max[j], sum[j]);
      const float own_weight = weight(max[j], all.x);
      float4 x[kOwn]{};
#pragma unroll
      for (int k = 0; k < kMostBlocks; ++k) {
        const float w = __shfl_sync(0xFFFFFFFFU, own_weight, k);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) add_weighted(x[i], part[j][k][i], w);
      }
      if (at_.clusters == 1) {
        store(row, all, x);
        continue;
      }
      const std::int64_t at = static_cast<std::int64_t>(piece_->slot - at_.rank) * Config::kRows + row;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) reinterpret_cast<float4*>(p_->partial_out)[at * kQuads + quad() + 32 * i] = x[i];
      if (lane() == 0) p_->partial_state[at] = all;
    }
  }

  /// The row's sum over the clusters of the output.
  __device__ __forceinline__ void merge_clusters(std::int32_t row) const {
    constexpr int kTogether = 16;  // clusters whose loads are on the way together
    const std::int64_t first = static_cast<std::int64_t>(piece_->slot - piece_->index) * Config::kRows + row;
    const std::int32_t step = at_.size * Config::kRows;
    const auto* partials = reinterpret_cast<const float4*>(p_->partial_out) + first * kQuads + quad();
    const float2 own =
        lane() < at_.clusters ? __ldcg(p_->partial_state + first + lane() * step) : make_float2(-FLT_MAX, 0.0F);
    float2 all;
    float own_weight = 0.0F;
    float4 x[kOwn]{};
#pragma unroll 1
    for (std::int32_t c0 = 0; c0 < at_.clusters; c0 += kTogether) {
      float4 part[kTogether][kOwn];
#pragma unroll
      for (int c = 0; c < kTogether; ++c) {
        const std::int64_t from = min(c0 + c, at_.clusters - 1) * static_cast<std::int64_t>(step) * kQuads;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) part[c][i] = __ldcg(partials + from + 32 * i);
      }
      if (c0 == 0) {
        all = weigh(own.x, own.y);
        own_weight = lane() < at_.clusters ? weight(own.x, all.x) : 0.0F;
      }
#pragma unroll
      for (int c = 0; c < kTogether; ++c) {
        const float w = __shfl_sync(0xFFFFFFFFU, own_weight, c0 + c);
#pragma unroll
        for (int i = 0; i < kOwn && c0 + c < at_.clusters; ++i) add_weighted(x[i], part[c][i], w);
      }
    }
    store(row, all, x);
  }

  /// Maximum and sum over the lanes.
  __device__ __forceinline__ static float2 weigh(float max, float sum) {
    float top = max;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, i));
    sum *= weight(max, top);
#pragma unroll
    for (int i = 1; i < 32; i *= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, i);
    return make_float2(top, sum);
  }
  __device__ __forceinline__ void store(std::int32_t row, float2 all, const float4 (&x)[kOwn]) const {
    const RowPlace place = place_row(*p_, piece_->head, piece_->row_block * Config::kRows + row);
    const RowFinish finish = finish_row<Config>(*p_, *s_, *piece_, place, all.x, all.y, lse_shift(*p_, exchange_, row));
#pragma unroll
    for (int i = 0; i < kOwn; ++i) store_quad<Config>(*p_, *s_, *piece_, place, quad() + 32 * i, x[i], finish);
  }
  /// Whether this block is the last one with share q of the rows; all threads.
  __device__ __forceinline__ bool last_of_share(std::int32_t q) const {
    sync_team<Config>();
    bool last = false;
    if (threadIdx.x == 0) {
      const std::int32_t output = (piece_->b * p_->row_blocks + piece_->row_block) * p_->kv_heads + piece_->head;
      last = last_arrival(p_->arrivals + output * at_.size + q, at_.clusters);
    }
    return any_of_team<Config>(last);
  }

  static constexpr int kMostBlocks = 1 << kMostMergeLog;

  const DecodeParams* p_;
  const Sequence* s_;
  const Piece* piece_;
  Exchange<Config> exchange_;
  ClusterPlace at_;
  std::int32_t rows_;
};

/// Whether a piece whose outputs are in shared memory is merged in a cluster: then it is the block's last one, and its
/// end lies behind the loop over pieces, where it leaves the loop its registers.
template <class Config>
__device__ __forceinline__ bool merges_in_cluster(const DecodeParams& p, const Work& done,
                                                  const Exchange<Config>& exchange) {
  return Config::kMerges && p.cluster_log > 0 && done.piece.count > 1 && exchange.schedule->direct();
}
template <class Config>
__device__ __noinline__ void merge_apart(const DecodeParams& p, const Work& done, std::uint8_t* shared) {
  ClusterMerge<Config>(p, done.sequence, done.piece, Exchange<Config>(shared)).run();
}
/// kApart: as a function of its own, which takes 2 us more, by loads of parameters, but no registers of the loop.
template <class Config, bool kApart = false>
__device__ __forceinline__ void merge_in_cluster(const DecodeParams& p, const Work& done,
                                                 const Exchange<Config>& exchange) {
  if constexpr (kApart) {
    merge_apart<Config>(p, done, exchange.ring);
  } else {
    ClusterMerge<Config>(p, done.sequence, done.piece, exchange).run();
  }
}
}  // namespace mpfa::sm90
