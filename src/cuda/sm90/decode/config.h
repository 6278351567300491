// Compile-time shape of the decode kernel.
#pragma once

#include "cuda/sm90/decode/operand.h"
#include "cuda/sm90/decode/row_tiles.h"

namespace mpfa::sm90 {

inline constexpr int kTileKeys = 32;
inline constexpr int kMaxSplits = 512;   // partial results of one row
inline constexpr int kArrivalStep = 16;  // counters of 8 bytes on a line each
// Blocks of an output that merge through shared memory; the most are for few outputs, up to this capacity.
inline constexpr int kClusterLog = 3, kMostClusterLog = 4, kMostClusterKeys = 32768;

/// Shared memory of a tile's scales as the MMA loops read them, see scales.cuh.
constexpr int key_scale_bytes(ScaleKind kind, int chunks) {
  switch (kind) {
    case ScaleKind::none: return 0;
    case ScaleKind::row: return kTileKeys * 4;
    case ScaleKind::group:
    case ScaleKind::e8m0: return kTileKeys * chunks * 4;
    case ScaleKind::e4m3: return kTileKeys * chunks * 8;
  }
  return 0;
}
constexpr int value_scale_bytes(ScaleKind kind, int chunks) {
  switch (kind) {
    case ScaleKind::none: return 0;
    case ScaleKind::row: return kTileKeys * 4;
    case ScaleKind::group:
    case ScaleKind::e8m0: return kTileKeys * chunks * 2;
    case ScaleKind::e4m3: return kTileKeys * chunks * 4;
  }
  return 0;
}

/// As many as registers and memory allow, equally many in every quarter of the multiprocessor.
constexpr int choose_warps(int by_registers, int by_memory) {
  if (by_memory >= by_registers) return by_registers;
  return by_memory >= 4 ? by_memory / 4 * 4 : by_memory;
}

/// What a kernel has code for. plain: tiles lie inside pages with rows side by side. halves: halves of tiles do; built
/// for one row tile, as paged: any pages. general: also softcap, ALiBi, mask tensors and head dims below kD.
enum class KernelCase { plain, halves, paged, general };

/// kTeamCount: teams of warps in a block, see team.cuh.
template <int kHeadDim, Operand kKeyOperand, Operand kValueOperand, int kRowTileCount, KernelCase kCase,
          int kTeamCount = 1>
struct DecodeConfig {
  static constexpr int kD = kHeadDim;
  static constexpr Operand kKey = kKeyOperand, kValue = kValueOperand;
  static constexpr OperandInfo kKeyInfo = kOperandInfo<kKey>, kValueInfo = kOperandInfo<kValue>;
  static constexpr ScaleKind kKeyScale = kKeyInfo.scale, kValueScale = kValueInfo.scale;
  static constexpr float kValueUnit = kValueInfo.unit;
  /// Takes the queries of recipe `mpfa`: centred, rounded to nvfp4, with a rank-one term.
  static constexpr bool kRankOne = kKey == Operand::nvfp4 && kValue == Operand::e4m3;
  static constexpr bool kHalves = kCase == KernelCase::halves, kPlain = kHalves || kCase == KernelCase::plain;
  static constexpr bool kGeneral = kCase == KernelCase::general;
  static constexpr int kRowTiles = kRowTileCount;  // of 8 query rows: the columns of one MMA
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kChunks = kD / 32;  // 32 channels
  static constexpr int kKeyRowBytes = kD * kKeyInfo.bits / 8, kValueRowBytes = kD * kValueInfo.bits / 8;

  // Shared memory of one warp, bytes.
  static constexpr int kKeyBytes = kTileKeys * kKeyRowBytes, kValueBytes = kTileKeys * kValueRowBytes;
  static constexpr int kStageBytes = kKeyBytes + kValueBytes;
  static constexpr int kKScaleBytes = key_scale_bytes(kKeyScale, kChunks);
  static constexpr int kVScaleBytes = value_scale_bytes(kValueScale, kChunks);
  // The last stage is also where the warp puts its output at the end of a piece; the others then hold what comes next.
  static constexpr int kOutBytes = kRows * kD * 4;
  static constexpr int kLastStageBytes = kOutBytes > kStageBytes ? kOutBytes : kStageBytes;
  static constexpr int kOutOffset = 2 * kStageBytes;
  static constexpr int kWarpBytes = 2 * kStageBytes + kLastStageBytes + kKScaleBytes + kVScaleBytes;
  /// Whether warps of four multiply K together, see group_scores.cuh.
  static constexpr bool kGroups = kPlain && multiplies_in_groups(kD, kKey, kRowTiles);
  /// Whether there is the short way of direct.cuh.
  static constexpr bool kDirect = kPlain && (kRowTiles == 1 || kGroups);
  /// Lanes that share a place of the output at the end of a piece. Four have a shorter way than one, unless there are
  /// places for every thread.
  static constexpr int kShares = kGroups && kRowTiles == 2 ? 1 : 4, kPlaceLanes = 32 / kShares;
  static constexpr float kKeyUnit = kGroups ? 0x1p6F : kKeyInfo.unit;
  static constexpr int kQueryBytes = kRowTiles * kChunks * (kGroups ? 768 : 512);
  static constexpr int kMostSharedBytes = 227 * 1024, kTeams = kTeamCount;
  static constexpr int kPieceBytes = kQueryBytes + 8 * kRows * 4 + 256;
  /// Warps of a block whose teams have so many bytes beside the rings.
  static constexpr int warps_beside(int bytes) {
    return choose_warps(decode_warps(kD, kRowTiles),
                        (kMostSharedBytes - kTeams * bytes) / (kWarpBytes + 2 * kRows * 4));
  }
  /// What the blocks of a cluster send each other in a direct call: places and their states, see direct.cuh. Not worth
  /// warps.
  static constexpr int kExchangeBytes = kOutBytes + kOutBytes / 16 + 16;
  static constexpr bool kClusters = kDirect && kTeams == 1 && has_clusters(kD, {kKey, kValue});
  static constexpr int kClusterBytes = kClusters ? kExchangeBytes : 0, kOtherBytes = kPieceBytes + kClusterBytes;
  static_assert(!kClusters || warps_beside(kOtherBytes) == warps_beside(kPieceBytes));

  // One block a multiprocessor: of two, the hardware prefers the older one, which is done long before the other.
  static constexpr int kBlockWarps = warps_beside(kOtherBytes);
  static constexpr int kBlockThreads = kBlockWarps * 32;
  static constexpr bool kPairs = kTeams == 1 && may_pair(kRowTiles);
  // Warps, threads and shared memory of a team.
  static constexpr int kWarps = kBlockWarps / kTeams;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRingBytes = kWarps * kWarpBytes;
  static constexpr int kTeamBytes = (kRingBytes + kOtherBytes + 2 * kWarps * kRows * 4 + 127) / 128 * 128;
  static constexpr int kSharedBytes = kTeams * kTeamBytes;
  static_assert(kWarps >= kRowTiles && kSharedBytes <= kMostSharedBytes, "more than a block can have");
  static_assert(kTeams == 1 || (kPlain && kBlockWarps % kTeams == 0), "no such teams");
  static_assert(!kGroups || kWarps % 4 == 0, "warps of four");
};

}  // namespace mpfa::sm90
