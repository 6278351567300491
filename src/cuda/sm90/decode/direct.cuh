// The short way through a call whose outputs are about equally long: every block has one piece that constants of the
// plan say, so that page ids and queries are asked for together with the lengths. For one row tile, plain pages and
// calls without windows, ragged rows, sinks and tokens in bf16; what is left out here is what nobody waits for.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/finish.cuh"
#include "cuda/sm90/decode/query.cuh"
#include "cuda/sm90/decode/walk.cuh"

namespace mpfa::sm90 {

/// The call with what launch_decode has made sure of as constants.
__device__ __forceinline__ DecodeParams direct_params(DecodeParams p) {
  p.cu_seqlens_q = nullptr;
  p.sequences = nullptr;
  p.sinks = nullptr;
  p.softcap = 0.0F;
  p.window_left = p.window_right = -1;
  p.wide = 0;
  return p;
}

/// Tile t of a sequence is of block t % splits of its output, and there of warp t / splits % kWarps.
template <class Config>
__device__ __forceinline__ Piece direct_piece(const DecodeParams& p) {
  Piece piece{};
  const auto block = static_cast<std::uint32_t>(blockIdx.x), output = divide(block, p.split_div);
  piece.slot = static_cast<std::int32_t>(block);
  piece.index = static_cast<std::int32_t>(block - output * p.splits);
  piece.b = static_cast<std::int32_t>(divide(output, p.head_div));
  piece.head = static_cast<std::int32_t>(output) - piece.b * p.kv_heads;
  return piece;
}

/// Whether the warp is the last one of the output with its places.
template <class Config>
__device__ __forceinline__ bool last_warp_of_output(const DecodeParams& p, const Piece& piece) {
  __syncwarp();
  std::int32_t before = 0;
  if (threadIdx.x % 32 == 0) {
    const std::int32_t output = piece.b * p.kv_heads + piece.head;
    before = ptx::count_arrival(p.counters + 1 + output * Config::kWarps + static_cast<std::int32_t>(threadIdx.x / 32));
  }
  const bool last = __shfl_sync(0xFFFFFFFFU, before, 0) == piece.count - 1;
  __syncwarp();
  return last;
}

/// The last sum of a piece: partial results of warps, then of blocks. Warp w of every block has the same places, and
/// the last of these warps sums them up.
template <class Config>
__device__ __forceinline__ void finish_directly(const DecodeParams& p, const Work& work,
                                                const Exchange<Config>& exchange, State<Config>& state, bool bad_page) {
  constexpr int kQuads = Config::kD / 4, kStep = Config::kThreads / kShares;
  const Piece& piece = work.piece;
  const std::int32_t places = min(Config::kRows, p.sq * p.group) * kQuads;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 8 + lane % 8;
  const PairExchange<Config> pair{exchange.ring};
  const bool paired = Config::kPairs && piece.paired != 0;
  put_warp<Config>(exchange, state, bad_page, places / kQuads);
  __syncthreads();
  if (piece.count > 1) {
    if (paired) {
      ptx::arrive_cluster();  // the copies into this block's stages are done and read
      ptx::wait_cluster();
    }
#pragma unroll 1
    for (int i = first; i < places; i += kStep) {
      Partial x = sum_warps(exchange, i / kQuads, i % kQuads);
      add_shares(x);
      if (lane >= 8) continue;
      if (paired) {
        pair.send(piece.index, i, x);
      } else {
        put_partial<Config>(p, piece, i, x);
      }
    }
    if (paired) {
      ptx::arrive_cluster();
      ptx::wait_cluster();
    } else if (!last_warp_of_output<Config>(p, piece)) {
      return;
    }
  }
#pragma unroll 1
  for (int i = first; i < places; i += kStep) {
    if (paired && pair.owner(i) != static_cast<std::uint32_t>(piece.index)) continue;
    Partial x = piece.count == 1 ? sum_warps(exchange, i / kQuads, i % kQuads)
                : paired         ? pair.receive(i)
                                 : sum_pieces<Config>(p, piece, i);
    add_shares(x);
    if (lane < 8) store_row<Config>(p, work.sequence, piece, i / kQuads, i % kQuads, x, 0.0F);
  }
}

/// False: the lengths differ too much, and nothing was done.
template <class Config>
__device__ __forceinline__ bool attend_directly(const DecodeParams& params, const Exchange<Config>& exchange,
                                                std::uint32_t memory) {
  const DecodeParams p = direct_params(params);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Work work{};
  Piece& piece = work.piece;
  Sequence& s = work.sequence;
  piece = direct_piece<Config>(p);
  const bool there = piece.b < p.batch;
  piece.b = min(piece.b, p.batch - 1);
  std::int64_t lengths = 0;
  if (lane < p.batch) lengths = p.lengths[lane];
  Walk<Config> walk(p);
  walk.enter(piece, 0, warp * p.splits + piece.index, Config::kWarps * p.splits);
  walk.ask((p.max_kv - 1) / kTileKeys);
  s.sq = p.sq;
  RawQuery<Config> query = load_query<Config>(p, work);

  const auto length = static_cast<std::int32_t>(max(min(lengths, std::int64_t{p.max_kv}), std::int64_t{0}));
  if (p.batch > 1) {
    const std::uint32_t tiles = lane < p.batch ? max((length + kTileKeys - 1) / kTileKeys, 1) : 0;
    const std::uint32_t total = __reduce_add_sync(0xFFFFFFFFU, tiles), longest = __reduce_max_sync(0xFFFFFFFFU, tiles);
    // Worth 1/16 of the work: about what a second piece costs.
    if (longest * p.batch > total + total / 16 + p.batch * p.splits) return false;
  }
  s.length = s.end = s.all_end = s.packed_end = __shfl_sync(0xFFFFFFFFU, length, piece.b);
  if (p.causal) s.all_end = min(s.length, s.length - s.sq + 1);
  s.tiles = (s.length + kTileKeys - 1) / kTileKeys;
  piece.count = min(p.splits, max(s.tiles, 1));
  piece.paired = p.pairs != 0 && piece.count == 2 ? 1 : 0;
  if (!there || piece.index >= piece.count) return true;
  const auto tiles =
      static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(s.tiles - piece.index + p.splits - 1), p.split_div));
  walk.start_copies((tiles - warp + Config::kWarps - 1) / Config::kWarps, memory);

  State<Config> state;
  clear_state<Config>(state);
  store_query<Config>(p, work, query, exchange.queries, exchange.factors);
  __syncthreads();
  walk.run(exchange, work, memory, state);
  finish_directly<Config>(p, work, exchange, state, walk.bad_page());
  return true;
}

}  // namespace mpfa::sm90
