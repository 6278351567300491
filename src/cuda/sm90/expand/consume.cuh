// The warps that multiply. A warpgroup has 64 rows as A operand, and tiles of K and of V as B operands. While a
// warpgroup computes P, the other's products run.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/expand/broken_values.cuh"
#include "cuda/sm90/expand/chunks.cuh"
#include "cuda/sm90/expand/products.cuh"
#include "cuda/sm90/verify/finish.cuh"

namespace mpfa::sm90 {

template <class Config>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const DecodeParams& p, const Control<Config>& control)
      : p_(&p), control_(control) {
    if (warpgroup() == 1) ptx::arrive_some<Config::kThreads>(kTurn);
  }

  __device__ __forceinline__ void run(const Exchange<Config>& exchange) {
    const DecodeParams& p = *p_;
    int round = 0;
    for (;; ++round) {
      const int slot = round % 2;
      const bool first = round == 0;
      const Work& work = exchange.work[slot];
      const Work& done = exchange.work[slot ^ 1];
      const bool choose = first || done.last == 0;
      if (!first) put(exchange, done);
      if (choose) {
        choose_work(p, exchange, slot, first);
        if (threadIdx.x == 0) control_.clear();  // all have read it before the barrier in there
      }
      ptx::sync_some<Config::kBlockThreads>(kWorkChosen);
      const bool more = choose && work.more != 0;
      Query query{};
      if (more) begin_query(work, exchange, query);
      if (!first) {
        sync_team<Config>();
        if (merges_in_cluster(p, done, exchange)) break;
        merge_groups<Config>(p, done.sequence, done.piece, exchange);
      }
      if (!more) break;
      // Copies of the first piece are on their way already.
      if (!Config::kCopies || !first) ptx::sync_some<Config::kBlockThreads>(kRingFree);
      load_shifts<Config>(p, work.sequence, work.piece, exchange);
      if (threadIdx.x == 0 && work.ends_chunk != 0 && work.last == 0) *exchange.taken = atomicAdd(p.taken, 1);
      end_query(work, exchange, query);
      sync_team<Config>();
      multiply(exchange, work);
    }
    if constexpr (Config::kMerges) {
      const Work& done = exchange.work[round % 2 ^ 1];
      if (round > 0 && merges_in_cluster(p, done, exchange)) {
        merge_in_cluster<Config>(p, done, exchange);
      }
    }
  }

 private:
  /// What a thread holds of q before it is in shared memory.
  struct NoQuery {};
  using Query = std::conditional_t<Config::kCopies, NoQuery, RawQuery<Config>>;
  __device__ __forceinline__ void begin_query(const Work& work, const Exchange<Config>& exchange, Query& query) const {
    if constexpr (Config::kCopies) {
      copy_row_query<Config>(*p_, work, exchange);
    } else {
      query = load_query<Config>(*p_, work);
    }
  }
  __device__ __forceinline__ void end_query(const Work& work, const Exchange<Config>& exchange, Query& query) const {
    if constexpr (Config::kCopies) {
      finish_row_query<Config>(*p_, work, exchange);
    } else {
      store_row_query<Config>(*p_, work, query, exchange);
    }
  }

  static constexpr int kGroups = Config::kGroups;
  /// Warpgroups multiply by turns, so that one computes P while the other's products run.
  __device__ __forceinline__ static int warpgroup() { return static_cast<int>(threadIdx.x / 128); }
  __device__ __forceinline__ static void begin_turn() { ptx::sync_some<Config::kThreads>(kTurn + warpgroup()); }
  __device__ __forceinline__ static void end_turn() { ptx::arrive_some<Config::kThreads>(kTurn + (warpgroup() ^ 1)); }
  __device__ __forceinline__ static std::int32_t group() {
    return kGroups == 1 ? 0 : static_cast<std::int32_t>(ptx::same_in_warp(threadIdx.x / 128));
  }

  /// Descriptors of K and of V of tile n of the block. From an address that the compiler knows to be a sum it would
  /// make every one of their steps by additions.
  __device__ __forceinline__ std::uint64_t keys_of(std::uint32_t n) const {
    return ptx::keys_descriptor(ptx::same_in_warp(control_.keys(static_cast<int>(n % Config::kStages))));
  }
  __device__ __forceinline__ std::uint64_t values_of(std::uint32_t n) const {
    return ptx::values_descriptor<Config::kKeys>(
        ptx::same_in_warp(control_.values(static_cast<int>(n % Config::kStages))));
  }
  __device__ __forceinline__ void release(std::uint32_t barrier) const {
    if (threadIdx.x % 32 == 0) ptx::arrive(barrier);
  }

  /// The sums of a piece, to state_.
  __device__ __forceinline__ void multiply(const Exchange<Config>& exchange, const Work& work) {
    const Tiles<Config> tiles = Tiles<Config>(work.sequence, work.piece).uniform();
    const RowQuery<Config> query(exchange, Config::kRowBlocks == 1 ? 0 : warpgroup() * kExpandRows);
#pragma unroll
    for (float& out : state_.out) out = 0.0F;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state_.sum[r] = 0.0F, state_.top[r] = -FLT_MAX;
      state_.factor[r] = exchange.factors[first_row<Config>() + 8 * r];
    }
    state_.key_exponent = 0, state_.value_exponent = 127;
    const std::int32_t count = max(tiles.count, 0);
    const std::uint32_t before = ptx::same_in_warp(done_);
    done_ += static_cast<std::uint32_t>(count);
    std::int32_t i = group(), turns = (count + kGroups - 1) / kGroups;
    float x[Config::kRowScores];
    ScoreScales<Config> scales;
    bool raised = false;
    if (i < count) {
      raised = wait_tile(before + i);
      begin_exponents(before + i);
      begin_turn();
      query.start_scores(keys_of(before + i), x);
      end_turn();
      scales.load(control_, before + i);
      ptx::wait_mma<0>();
      ptx::pin(x);
    } else if (turns > 0) {
      begin_turn();
      end_turn();
    }
#pragma unroll 1
    for (; i < count; i += kGroups) {
      const std::uint32_t n = before + i;
      const auto stage = static_cast<int>(n % Config::kStages);
      const std::uint64_t keys = keys_of(n + kGroups), values = values_of(n);
      std::uint32_t pairs[Config::kRowScores / 4][2];
      scales.multiply(x);
      probabilities(work, tiles, i, stage, raised, x, pairs);
      const std::uint32_t next = n + kGroups;
      const bool more = i + kGroups < count;
      if (more) raised = wait_tile(next);
      begin_turn();
      start_outputs<Config>(values, pairs, state_.out);
      // Behind the last tile the scores are of whatever lies there, and not used.
      query.start_scores(keys, x);
      end_turn();
      --turns;
      ptx::wait_mma<1>();
      ptx::pin(state_.out);
      release(control_.free(stage));
      scales.load(control_, next);
      ptx::wait_mma<0>();
      ptx::pin(x);
    }
    if (turns > 0) {
      begin_turn();
      end_turn();
    }
  }
  /// Returns whether its scales are not all relative to the same.
  __device__ __forceinline__ bool wait_tile(std::uint32_t n) const {
    ptx::wait_phase(control_.full(static_cast<int>(n % Config::kStages)), n / Config::kStages & 1U);
    if constexpr (Config::kCopies) ptx::fence_shared_writes();  // those of copies, which none fenced
    return Config::kFollows && control_.raised();
  }
  /// Scores and outputs become relative to the exponents of the first tile.
  __device__ __forceinline__ void begin_exponents(std::uint32_t n) {
    if constexpr (Config::kFollows) {
      std::uint32_t both[2];
      load_words(both, control_.units(static_cast<int>(n % Config::kStages), 0));
      state_.key_exponent = static_cast<std::int32_t>(both[0]),
      state_.value_exponent = static_cast<std::int32_t>(both[1]);
      if constexpr (Config::kFollowsKeys) {
#pragma unroll
        for (float& factor : state_.factor) factor *= followed_unit(followed_bias(state_.key_exponent));
      }
    }
#pragma unroll
    for (float& factor : state_.factor) factor = finite_factor(factor);
  }

  /// P of tile i; adds to the sums of rows.
  __device__ __forceinline__ void probabilities(const Work& work, const Tiles<Config>& tiles, std::int32_t i, int stage,
                                                bool raised, float (&x)[Config::kRowScores],
                                                std::uint32_t (&pairs)[Config::kRowScores / 4][2]) {
    float lifts[Config::kRowScores / 8];
    const bool masked = tiles.masked(i);
    if (__builtin_expect(masked || raised, 0)) {
      if constexpr (Config::kFollows) {
        if (raised) follow_exponents<Config>(control_.units(stage, 0), x, lifts, state_);
      }
      if (masked) {
        const std::int32_t row0 = work.piece.row_block * Config::kRows, first = tiles.first + i * Config::kKeys;
        mask_row_scores<Config>(*p_, work.sequence, row0, first, tiles.end, x);
        if constexpr (Config::kCopies) {
          spread_stored_values<Config>(*p_, work, first, control_.broken(stage, 0), state_);
        } else {
          spread_row_nan<Config>(*p_, work.sequence, row0, first, control_.broken(stage, 0), state_);
        }
      }
    }
    float sum[2];
    if (__builtin_expect(__any_sync(0xFFFFFFFFU, take_row_probabilities<Config>(x, state_, sum, pairs)), 0)) {
      raise_row_tops<Config>(x, state_);
      take_row_probabilities<Config>(x, state_, sum, pairs);
    }
    state_.sum[0] += sum[0], state_.sum[1] += sum[1];
    if constexpr (Config::kFollows) {
      if (__builtin_expect(raised, 0)) {
#pragma unroll
        for (int k = 0; k < Config::kRowScores / 2; ++k) {
          const std::uint32_t lift = half2_bits(__float2half2_rn(lifts[k / 4]));
          pairs[k / 2][k % 2] = multiply_half2(pairs[k / 2][k % 2], lift);
        }
      }
    }
  }

  /// What the warpgroups have, to shared memory, when no tile is read any longer.
  __device__ __forceinline__ void put(const Exchange<Config>& exchange, const Work& done) {
    sync_team<Config>();
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32), t = lane % 4;
    const std::int32_t rows = min(Config::kRows, done.sequence.sq * p_->group - done.piece.row_block * Config::kRows);
    const int k = kGroups == 1 ? 0 : static_cast<int>(threadIdx.x / 128);
    const bool bad = control_.bad();
    float unit = Config::kValueInfo.unit;
    if constexpr (Config::kFloatsOfValues) {
      unit *= FollowedScales<Config::kValue>::unit(state_.value_exponent);
    } else if constexpr (Config::kFollowsValues) {
      unit = followed_unit(followed_bias(state_.value_exponent));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int32_t row = first_row<Config>() + 8 * r;
      float sum = state_.sum[r];
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
      if (bad) sum = __int_as_float(0x7FC00000);  // a page id outside the pool: NaN, not a wrong number
      exchange.sum[(4 * k + t) * Config::kRows + row] = t == 0 ? sum : 0.0F;
      if (t == 0) exchange.max[4 * k * Config::kRows + row] = state_.top[r];
      if (row >= rows) continue;
#pragma unroll
      for (int i = 0; i < Config::kD / 4; ++i) {
        const int2 place = channel_place<Config::kValue>(channel(i / 2, t, i % 2));
        reinterpret_cast<float*>(exchange.out(k, row, place.x))[place.y] = state_.out[i / 2 * 4 + r * 2 + i % 2] * unit;
      }
    }
  }
  /// Of place 8 n + 2 t + j of an expanded row.
  __device__ __forceinline__ static int channel(int n, int t, int j) {
    return Config::kValueInfo.bits == 4 ? 8 * n + t + 4 * j : 8 * n + 2 * t + j;
  }

  const DecodeParams* p_;
  Control<Config> control_;
  RowState<Config> state_;
  std::uint32_t done_ = 0;  // tiles of pieces before
};

}  // namespace mpfa::sm90
