// The short way through a call whose outputs are about equally long: every block has one piece that constants of the
// plan say, so that page ids and queries are asked for together with the lengths. For one row tile (two of mxfp4),
// plain pages and calls without ragged rows and tokens in bf16; what is left out is what nobody waits for.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/finish.cuh"
#include "cuda/sm90/decode/query.cuh"
#include "cuda/sm90/decode/walk.cuh"

namespace mpfa::sm90 {

/// The call with what launch_decode has made sure of as constants.
template <bool kWindow, bool kMeans>
__device__ __forceinline__ DecodeParams direct_params(DecodeParams p) {
  p.cu_seqlens_q = nullptr;
  if (!kMeans) p.sequences = nullptr;
  p.softcap = 0.0F;
  if (!kWindow) p.window_left = -1;
  p.window_right = -1;
  p.wide = 0;
  for (std::int64_t* stride :
       {&p.q_batch, &p.q_row, &p.q_head, &p.out_batch, &p.out_row, &p.out_head, &p.page_table_stride, &p.k.data_head,
        &p.k.scale_head, &p.v.data_head, &p.v.scale_head}) {
    *stride = static_cast<std::int32_t>(*stride);
  }
  return p;
}

/// Tile t of those that a sequence visits is of block t % splits of its output, and there of warp t / splits % kWarps.
template <class Config>
__device__ __forceinline__ Piece direct_piece(const DecodeParams& p) {
  Piece piece{};
  const auto block = static_cast<std::uint32_t>(team_of_grid<Config>()), output = divide(block, p.split_div);
  piece.slot = static_cast<std::int32_t>(block);
  piece.index = static_cast<std::int32_t>(block - output * p.splits);
  piece.b = static_cast<std::int32_t>(divide(output, p.head_div));
  piece.head = static_cast<std::int32_t>(output) - piece.b * p.kv_heads;
  return piece;
}

/// Means of K and of V of a sequence, asked for with its length.
struct Means {
  const float *key = nullptr, *value = nullptr;

  __device__ __forceinline__ Means(const DecodeParams& p, std::int32_t b) {
    if (p.sequences != nullptr) key = p.sequences[b].k_mean, value = p.sequences[b].v_mean;
  }
  /// Fetches those of a head to the second-level cache, by a warp.
  template <class Config>
  __device__ __forceinline__ void prefetch(std::int32_t head) const {
    constexpr int kLines = Config::kD / 32;
    const int lane = threadIdx.x % 32;
    const float* mean = lane < kLines ? key : value;
    if (lane < 2 * kLines && mean != nullptr) ptx::prefetch(mean + head * Config::kD + lane % kLines * 32);
  }
};

/// The warp's counter of arrivals.
template <class Config>
__device__ __forceinline__ std::uint64_t* arrivals_of_warp(const DecodeParams& p, const Piece& piece) {
  const std::int32_t output = piece.b * p.kv_heads + piece.head;
  return p.arrivals + (output * Config::kWarps + team_warp<Config>()) * kArrivalStep;
}

/// Whether the warp is the last one of the output with its places.
template <class Config>
__device__ __forceinline__ bool last_warp_of_output(const DecodeParams& p, const Piece& piece) {
  __syncwarp();
  bool last = false;
  if (threadIdx.x % 32 == 0) last = last_arrival(arrivals_of_warp<Config>(p, piece), piece.count);
  last = __any_sync(0xFFFFFFFFU, last);
  __syncwarp();
  return last;
}

/// What the blocks of an output that is a cluster send each other: sums of places. Groups of 8 places belong to the
/// blocks by turns.
template <class Config>
struct ClusterExchange {
  static constexpr int kPlaces = Config::kRows * Config::kD / 4;
  float4* outs;      // [block][own place]
  std::int32_t log;  // of the number of blocks

  __device__ __forceinline__ ClusterExchange(const Exchange<Config>& exchange, std::int32_t log)
      : outs(reinterpret_cast<float4*>(exchange.ring + Config::kSharedBytes - Config::kClusterBytes)), log(log) {}
  [[nodiscard]] __device__ __forceinline__ int owner(int i) const { return i / 8 & ((1 << log) - 1); }
  [[nodiscard]] __device__ __forceinline__ int at(int block, int i) const {
    return (block * kPlaces >> log) + (i >> (3 + log)) * 8 + i % 8;
  }
  [[nodiscard]] __device__ __forceinline__ float2* states() const { return reinterpret_cast<float2*>(outs + kPlaces); }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t barrier() const {
    return ptx::shared_address(states() + kPlaces / 8);
  }

  /// One thread, before the cluster's barrier: how much all blocks send for the block's groups of `places`.
  __device__ __forceinline__ void expect(int block, std::int32_t places) const {
    const std::int32_t own = (places / 8 - block + (1 << log) - 1) >> log;
    ptx::start_barrier(barrier(), (own << log) * static_cast<std::int32_t>(8 * sizeof(float4) + sizeof(float2)));
  }
  __device__ __forceinline__ void send(int block, int i, const Partial& x) const {
    const std::uint32_t to = owner(i), done = ptx::remote_address(barrier(), to);
    ptx::store_async(ptx::remote_address(ptx::shared_address(outs + at(block, i)), to), x.out, done);
    if (i % 8 != 0) return;
    ptx::store_async(ptx::remote_address(ptx::shared_address(states() + at(block, i) / 8), to),
                     make_float2(x.max, x.sum), done);
  }
  /// Waits for what all blocks have sent; the lane's share of it.
  [[nodiscard]] __device__ __forceinline__ Partial receive(int i) const {
    ptx::wait_barrier(barrier());
    constexpr int kTogether = 8;  // as many as one sequence of 8 KV heads has
    const auto of_blocks = [&](int from) {
      return gather<kTogether / Config::kShares>([&](int k) -> Partial {
        const int block = from + first_source<Config>() + Config::kShares * k;
        if (block >> log != 0) return no_keys();
        const float2 state = states()[at(block, i) / 8];
        return {outs[at(block, i)], state.x, state.y};
      });
    };
    const Partial x = of_blocks(0);
    if (1 << log <= kTogether) return x;
    const Partial y = of_blocks(kTogether);
    return gather<2>([&](int k) -> Partial { return k == 0 ? x : y; });
  }
};

/// Whether the pieces of the output are merged in shared memory; then blocks without tiles take part.
template <class Config>
__device__ __forceinline__ bool clustered(const DecodeParams& p, const Piece& piece) {
  return Config::kClusterBytes > 0 && p.cluster_log > 0 && piece.count > 1;
}

/// The last sum of a piece: partial results of warps, then of blocks. Warp w of every block has the same places, and
/// the last of these warps sums them up.
template <class Config>
__device__ __forceinline__ void finish_directly(const DecodeParams& p, const Work& work,
                                                const Exchange<Config>& exchange, State<Config>& state, bool bad_page) {
  constexpr int kQuads = Config::kD / 4, kStep = Config::kThreads / Config::kShares;
  const Piece& piece = work.piece;
  const std::int32_t places = min(Config::kRows, p.sq * p.group) * kQuads;
  const int first = first_place<Config>();
  const bool writes = first_source<Config>() == 0;
  const ClusterExchange<Config> cluster(exchange, p.cluster_log);
  const bool merges = clustered<Config>(p, piece);
  put_warp<Config>(exchange, state, bad_page, places / kQuads);
  sync_team<Config>();
  if (piece.count > 1) {
    if (merges) ptx::wait_cluster();  // all blocks have begun
#pragma unroll 1
    for (int i = first; i < places; i += kStep) {
      Partial x = sum_warps(exchange, i / kQuads, i % kQuads);
      add_shares<Config>(x);
      if (!writes) continue;
      if (merges) {
        cluster.send(piece.index, i, x);
      } else {
        put_partial<Config>(p, piece, i, x);
      }
    }
    if (!merges && !last_warp_of_output<Config>(p, piece)) return;
  }
#pragma unroll 1
  for (int i = first; i < places; i += kStep) {
    if (merges && cluster.owner(i) != piece.index) continue;
    Partial x = piece.count == 1 ? sum_warps(exchange, i / kQuads, i % kQuads)
                : merges         ? cluster.receive(i)
                                 : sum_pieces<Config>(p, piece, i);
    add_shares<Config>(x);
    const int row = i / kQuads;
    if (writes) store_row<Config>(p, work.sequence, piece, row, i % kQuads, x, lse_shift(p, exchange, row));
  }
}

/// Whether blocks of equal numbers of tiles are done together: with a tile a warp some may have fewer.
template <class Config>
__device__ __forceinline__ bool are_even(std::int32_t split, std::int32_t share) {
  return split <= Config::kWarps || nearly_equal(split, share);
}

/// False: the lengths differ too much, and nothing was done. kWindow: the first tile depends on the length, and there
/// are few, so that lengths may differ. kMeans: sequences have means of K or V.
template <class Config, bool kWindow, bool kMeans>
__device__ __forceinline__ bool attend_directly(const DecodeParams& params, const Exchange<Config>& exchange,
                                                std::uint32_t memory) {
  const DecodeParams p = direct_params<kWindow, kMeans>(params);
  const int warp = team_warp<Config>(), lane = threadIdx.x % 32;
  Work work{};
  Piece& piece = work.piece;
  Sequence& s = work.sequence;
  piece = direct_piece<Config>(p);
  const bool there = piece.b < p.batch;
  piece.b = min(piece.b, p.batch - 1);
  const std::int64_t own = p.lengths[piece.b];
  const Means means(p, piece.b);
  std::int64_t lengths = 0;
  if (!kWindow && lane < p.batch) lengths = p.lengths[lane];
  Walk<Config> walk(p);
  walk.enter(piece.b, 0, warp * p.splits + piece.index, Config::kWarps * p.splits);
  if (!kWindow) walk.ask((p.max_kv + kTileKeys - 1) / kTileKeys - 1);
  s.sq = p.sq;
  RawQuery<Config> query = load_query<Config>(p, work);
  const float global = key_global(p, piece.head);
  walk.open(piece.head);

  const auto length = [&p](std::int64_t n) {
    return static_cast<std::int32_t>(max(min(n, std::int64_t{p.max_kv}), std::int64_t{0}));
  };
  if constexpr (kWindow) {
    s.length = length(own);
    s.begin = max(s.length - s.sq - p.window_left, 0);
    s.all_begin = ptx::same_in_warp(max(s.length - 1 - p.window_left, 0));
    walk.begin_at(s.begin / kTileKeys);
    walk.ask((s.length + kTileKeys - 1) / kTileKeys - 1);
  }
  if (!kWindow && p.batch > 1) {
    std::uint32_t total = 0, longest = 0;
#pragma unroll 1
    for (std::int32_t b = lane; b < p.batch; b += 32) {
      if (b >= 32) lengths = p.lengths[b];
      const std::uint32_t tiles = max((length(lengths) + kTileKeys - 1) / kTileKeys, 1);
      total += tiles, longest = max(longest, tiles);
    }
    total = __reduce_add_sync(0xFFFFFFFFU, total), longest = __reduce_max_sync(0xFFFFFFFFU, longest);
    const std::uint32_t split = divide(longest + p.splits - 1, p.split_div);
    if (!are_even<Config>(split, divide(total + p.even_div.d - 1, p.even_div))) return false;
  }
  s.length = s.end = s.all_end = s.packed_end = length(own);
  if (p.causal) s.all_end = min(s.length, s.length - s.sq + 1);
  s.tiles = (s.length + kTileKeys - 1) / kTileKeys - s.begin / kTileKeys;
  piece.count = min(p.splits, max(s.tiles, 1));
  const bool merges = clustered<Config>(p, piece);
  if (!there || (piece.index >= piece.count && !merges)) return true;
  walk.end_at(s.length);
  if (kMeans && warp == 0) means.template prefetch<Config>(piece.head);
  if (merges) {
    const ClusterExchange<Config> cluster(exchange, p.cluster_log);
    if (threadIdx.x == 0) cluster.expect(piece.index, min(Config::kRows, p.sq * p.group) * (Config::kD / 4));
    ptx::arrive_cluster_relaxed();
  }
  const auto tiles =
      static_cast<std::int32_t>(divide(static_cast<std::uint32_t>(s.tiles - piece.index + p.splits - 1), p.split_div));
  store_query<Config>(p, work, global, query, exchange);
  walk.start_copies(tiles, memory);
  if (kMeans && (p.lse != nullptr || p.sinks != nullptr)) load_shifts<Config>(p, s, piece, exchange);

  if (piece.count > 1 && !merges && lane == 0) ptx::prefetch(arrivals_of_warp<Config>(p, piece));
  State<Config> state;
  clear_state<Config>(state);
  sync_team<Config>();
  walk.run(exchange, work, memory, state);
  finish_directly<Config>(p, work, exchange, state, walk.bad_page());
  return true;
}

}  // namespace mpfa::sm90
