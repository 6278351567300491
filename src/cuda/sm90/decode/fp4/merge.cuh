// End of a piece: the warps of the block merge, and the last block of a row merges what all blocks wrote.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/sm90/decode/fp4/scales.cuh"
#include "cuda/sm90/decode/fp4/softmax.cuh"

namespace mpfa::sm90 {

/// Shared memory at the end of a piece.
template <class Config>
struct Exchange {
  static constexpr int kRows = Config::kRows;
  std::uint8_t* ring;  // of warp w from w * kWarpBytes on
  float* max;          // [warp][row]
  float* sum;          // [warp][row]
  float* row_max;      // [kRows]
  float* row_sum;      // [kRows]
  float* row_shift;    // [kRows] logit that centring K took out
  float* factors;      // [kRows] see Factors
  uint4* queries;      // [row tile][chunk][lane] B operands
  std::int32_t* word;  // one word that a thread tells the others
  Work* work;          // [2] this piece and the next one
  Schedule* schedule;

  __device__ explicit Exchange(std::uint8_t* shared) : ring(shared) {
    queries = reinterpret_cast<uint4*>(shared + Config::kRingBytes);
    auto* f = reinterpret_cast<float*>(shared + Config::kRingBytes + Config::kQueryBytes);
    max = f;
    sum = max + Config::kWarps * kRows;
    row_max = sum + Config::kWarps * kRows;
    row_sum = row_max + kRows;
    row_shift = row_sum + kRows;
    factors = row_shift + kRows;
    word = reinterpret_cast<std::int32_t*>(factors + kRows);
    work = reinterpret_cast<Work*>(word + 4);
    schedule = reinterpret_cast<Schedule*>(work + 2);
  }
  /// A quad of channels (see value_channel) of a row as a warp has them; the order of quads avoids bank conflicts.
  __device__ float4* out(int warp, int row, int quad) const {
    return reinterpret_cast<float4*>(ring + warp * Config::kWarpBytes + 2 * Config::kStageBytes) +
           row * (Config::kD / 4) + (quad ^ (row & 6));
  }
};

/// Logits that centring K took out of the rows, to exchange.row_shift.
template <class Config>
__device__ __forceinline__ void load_shifts(const DecodeParams& p, const Sequence& s, const Piece& piece,
                                            const Exchange<Config>& exchange) {
  if (p.sequences == nullptr && p.softcap == 0.0F) return;
  const std::int32_t row0 = piece.row_block * Config::kRows, last = s.sq * p.group - 1;
  for (int row = threadIdx.x / 32; row < Config::kRows; row += Config::kWarps) {
    const float shift = mean_logit(p, s, piece, place_row(p, piece.head, min(row0 + row, last)), Config::kD);
    if (threadIdx.x % 32 == 0) exchange.row_shift[row] = shift;
  }
}

/// What is left to add to the LSE: with a softcap the scores were true logits already.
template <class Config>
__device__ __forceinline__ float lse_shift(const DecodeParams& p, const Exchange<Config>& exchange, int row) {
  return p.sequences == nullptr || p.softcap > 0.0F ? 0.0F : exchange.row_shift[row];
}

__device__ __forceinline__ float weight(float max, float top) {
  return exp2f(max - top);
}

/// Normalises the channels of a quad of a row and writes them; quad 0 writes the LSE too.
template <class Config>
__device__ __forceinline__ void store_row(const DecodeParams& p, const Sequence& s, const Piece& piece, std::int32_t r,
                                          int quad, float4 out, float max, float sum, float shift) {
  const RowPlace place = place_row(p, piece.head, r);
  const bool empty = sum == 0.0F;
  float lse = empty ? -INFINITY : max * kLn2 + logf(sum) + shift;
  float scale = empty ? 0.0F : 1.0F / sum;
  const float* mean = p.sequences == nullptr ? nullptr : p.sequences[piece.b].v_mean;
  if (p.v.global != nullptr) scale *= p.v.global[piece.head];
  float share = 1.0F;
  if (p.sinks != nullptr) {
    const float sink = p.sinks[place.head];
    if (empty) {
      lse = sink;
    } else {
      const float top = fmaxf(lse, sink);
      const float total = top + logf(expf(lse - top) + expf(sink - top));
      share = expf(lse - total);
      lse = total;
    }
  }
  float v[4] = {out.x * scale, out.y * scale, out.z * scale, out.w * scale};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (empty) {
      v[i] = 0.0F;
    } else {
      if (mean != nullptr) v[i] += mean[piece.head * Config::kD + value_channel<Config::kValue>(quad, i)];
      v[i] *= share;
    }
  }
  const std::int64_t row = p.cu_seqlens_q != nullptr ? (s.first_row + place.token) * p.out_row
                                                     : piece.b * p.out_batch + place.token * p.out_row;
  const std::int64_t at = row + place.head * p.out_head;
  int channel[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) channel[i] = value_channel<Config::kValue>(quad, i);
  if (p.out_type == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) static_cast<float*>(p.out)[at + channel[i]] = v[i];
  } else if (p.out_type == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) static_cast<__nv_bfloat16*>(p.out)[at + channel[i]] = __float2bfloat16_rn(v[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) static_cast<__half*>(p.out)[at + channel[i]] = __float2half_rn(v[i]);
  }
  if (quad == 0 && p.lse != nullptr) {
    const std::int64_t lse_at =
        p.cu_seqlens_q != nullptr
            ? place.head * p.lse_rows + s.first_row + place.token
            : (static_cast<std::int64_t>(piece.b) * p.q_heads + place.head) * p.lse_rows + place.token;
    p.lse[lse_at] = lse;
  }
}

/// Sums the block's warps into `out` of (row, quad) pairs; maxima and sums of rows end in exchange.row_*.
template <class Config>
__device__ __forceinline__ void merge_warps(const Exchange<Config>& exchange, State<Config>& state, bool bad_page,
                                            std::int32_t rows) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool bad = __any_sync(0xFFFFFFFFU, bad_page);
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 4; i < 32; i *= 2) state.sum[n][j] += __shfl_xor_sync(0xFFFFFFFFU, state.sum[n][j], i);
      if (bad) state.sum[n][j] = __int_as_float(0x7FC00000);  // a page id outside the pool: NaN, not a wrong number
      if (g == 0) {
        exchange.max[warp * Config::kRows + n * 8 + 2 * t + j] = state.max[n][j];
        exchange.sum[warp * Config::kRows + n * 8 + 2 * t + j] = state.sum[n][j];
      }
    }
  }
  __syncthreads();
  const float unit = value_unit<Config>(state);
#pragma unroll
  for (int n = 0; n < Config::kRowTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = n * 8 + 2 * t + j;
      if (row >= rows) continue;
      float top = exchange.max[row];
#pragma unroll
      for (int w = 1; w < Config::kWarps; ++w) top = fmaxf(top, exchange.max[w * Config::kRows + row]);
      const float scale = weight(state.max[n][j], top) * unit;
#pragma unroll
      for (int c = 0; c < Config::kChunks; ++c) {
        const auto& o = state.out[n][c];
        *exchange.out(warp, row, c * 8 + g) =
            make_float4(o[0][j] * scale, o[0][2 + j] * scale, o[1][j] * scale, o[1][2 + j] * scale);
      }
    }
  }
  if (static_cast<int>(threadIdx.x) < rows) {
    const int row = threadIdx.x;
    float top = exchange.max[row];
    for (int w = 1; w < Config::kWarps; ++w) top = fmaxf(top, exchange.max[w * Config::kRows + row]);
    float sum = 0.0F;
    for (int w = 0; w < Config::kWarps; ++w) {
      sum += exchange.sum[w * Config::kRows + row] * weight(exchange.max[w * Config::kRows + row], top);
    }
    exchange.row_max[row] = top;
    exchange.row_sum[row] = sum;
  }
  __syncthreads();
}

template <class Config>
__device__ __forceinline__ float4 sum_warps(const Exchange<Config>& exchange, int row, int quad) {
  float4 v = *exchange.out(0, row, quad);
#pragma unroll
  for (int w = 1; w < Config::kWarps; ++w) {
    const float4 o = *exchange.out(w, row, quad);
    v.x += o.x, v.y += o.y, v.z += o.z, v.w += o.w;
  }
  return v;
}

/// Merges the partial results of the piece's rows and writes them. kShare neighbouring lanes share a place of the
/// output and take every kShare-th partial result.
template <class Config>
__device__ __forceinline__ void merge_pieces(const DecodeParams& p, const Sequence& s, const Piece& piece,
                                             const Exchange<Config>& exchange, std::int32_t rows) {
  constexpr int kQuads = Config::kD / 4, kShare = 4, kBatch = 8;
  const std::int64_t first = static_cast<std::int64_t>(piece.slot - piece.index);
  const float2* states = p.partial_state + first * Config::kRows;
  const float4* partials = reinterpret_cast<const float4*>(p.partial_out) + first * Config::kRows * kQuads;
  const int share = threadIdx.x % kShare;
  for (int i = threadIdx.x / kShare; i < rows * kQuads; i += Config::kThreads / kShare) {
    const int row = i / kQuads, quad = i % kQuads;
    float4 out = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    float max = -FLT_MAX, sum = 0.0F;
    const auto add = [&](float4 o, float2 state) {
      const float top = fmaxf(max, state.x);
      const float keep = weight(max, top), w = weight(state.x, top);
      out.x = fmaf(o.x, w, out.x * keep), out.y = fmaf(o.y, w, out.y * keep);
      out.z = fmaf(o.z, w, out.z * keep), out.w = fmaf(o.w, w, out.w * keep);
      sum = fmaf(state.y, w, sum * keep);
      max = top;
    };
    for (int k0 = share; k0 < piece.count; k0 += kShare * kBatch) {
      float4 o[kBatch];
      float2 state[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int k = min(k0 + kShare * j, piece.count - 1);
        o[j] = __ldcg(partials + (k * Config::kRows + row) * kQuads + quad);
        state[j] = __ldcg(states + k * Config::kRows + row);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (k0 + kShare * j < piece.count) add(o[j], state[j]);
      }
    }
#pragma unroll
    for (int j = 1; j < kShare; j *= 2) {
      constexpr unsigned kAll = 0xFFFFFFFFU;
      const float4 other = make_float4(__shfl_xor_sync(kAll, out.x, j), __shfl_xor_sync(kAll, out.y, j),
                                       __shfl_xor_sync(kAll, out.z, j), __shfl_xor_sync(kAll, out.w, j));
      const float2 other_state = make_float2(__shfl_xor_sync(kAll, max, j), __shfl_xor_sync(kAll, sum, j));
      add(other, other_state);
    }
    if (share == 0) {
      store_row<Config>(p, s, piece, piece.row_block * Config::kRows + row, quad, out, max, sum,
                        lse_shift(p, exchange, row));
    }
  }
}

template <class Config>
__device__ __forceinline__ void finish_piece(const DecodeParams& p, const Sequence& s, const Piece& piece,
                                             const Exchange<Config>& exchange, State<Config>& state, bool bad_page) {
  constexpr int kQuads = Config::kD / 4;
  const std::int32_t rows = min(Config::kRows, s.sq * p.group - piece.row_block * Config::kRows);
  merge_warps<Config>(exchange, state, bad_page, rows);
  if (piece.count == 1) {
    for (int i = threadIdx.x; i < rows * kQuads; i += Config::kThreads) {
      const int row = i / kQuads, quad = i % kQuads;
      store_row<Config>(p, s, piece, piece.row_block * Config::kRows + row, quad, sum_warps(exchange, row, quad),
                        exchange.row_max[row], exchange.row_sum[row], lse_shift(p, exchange, row));
    }
    __syncthreads();
    return;
  }
  float4* partials =
      reinterpret_cast<float4*>(p.partial_out) + static_cast<std::int64_t>(piece.slot) * Config::kRows * kQuads;
  for (int i = threadIdx.x; i < rows * kQuads; i += Config::kThreads)
    partials[i] = sum_warps(exchange, i / kQuads, i % kQuads);
  if (static_cast<int>(threadIdx.x) < rows) {
    p.partial_state[static_cast<std::int64_t>(piece.slot) * Config::kRows + threadIdx.x] =
        make_float2(exchange.row_max[threadIdx.x], exchange.row_sum[threadIdx.x]);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const std::int32_t output = (piece.b * p.row_blocks + piece.row_block) * p.kv_heads + piece.head;
    *exchange.word = atomicAdd(p.counters + 1 + output, 1);
  }
  __syncthreads();
  if (*exchange.word == piece.count - 1) {
    __threadfence();
    merge_pieces<Config>(p, s, piece, exchange, rows);
  }
  __syncthreads();
}

/// Chooses what the block does next, to exchange.work[slot]. `taken`: what thread 0 drew from the counter of chunks if
/// the last piece ended its chunk; negative at the start.
template <class Config>
__device__ __forceinline__ void choose_work(const DecodeParams& p, const Exchange<Config>& exchange, int slot,
                                            std::int32_t taken) {
  if (threadIdx.x < 32) {
    Schedule schedule = *exchange.schedule;
    __syncwarp();
    if (taken < 0) {
      schedule.start(p);
    } else if (schedule.chunk_done()) {
      schedule.take(__shfl_sync(0xFFFFFFFFU, taken, 0) + static_cast<std::int32_t>(gridDim.x));
    }
    Work work{};
    if (!schedule.done()) {
      work.piece = schedule.next(p);
      work.sequence = read_sequence(p, work.piece.b);
      work.more = 1;
      work.ends_chunk = schedule.chunk_done() ? 1 : 0;
    }
    if (threadIdx.x == 0) {
      *exchange.schedule = schedule;
      exchange.work[slot] = work;
    }
  }
  __syncthreads();
}

}  // namespace mpfa::sm90
