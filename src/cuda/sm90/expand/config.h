// Compile-time shape of the kernel for many rows.
#pragma once

#include "cuda/sm90/decode/config.h"
#include "cuda/sm90/expand/shapes.h"
#include "cuda/sm90/verify/shapes.h"

namespace mpfa::sm90 {

/// kRowBlockCount: blocks of 64 rows. With one, two warpgroups have every other tile; with two, a row block each.
template <int kHeadDim, Operand kKeyOperand, Operand kValueOperand, int kRowBlockCount>
struct ExpandConfig {
  static constexpr int kD = kHeadDim;
  static constexpr Operand kKey = kKeyOperand, kValue = kValueOperand;
  static constexpr OperandInfo kKeyInfo = kOperandInfo<kKey>, kValueInfo = kOperandInfo<kValue>;
  static constexpr ScaleKind kKeyScale = verify_scale(kKey), kValueScale = verify_scale(kValue);
  /// Scales are relative to exponents that warps follow; those of tokens of K, and the largest of a key's groups,
  /// multiply scores instead.
  static constexpr bool kFollowsKeys = kKeyScale == ScaleKind::e8m0;
  static constexpr bool kGroupsOfKeys = kKeyScale == ScaleKind::group;
  static constexpr bool kScalesScores = kKeyScale == ScaleKind::row || kGroupsOfKeys;
  /// f32 or f16 scales of V, of tokens or groups.
  static constexpr bool kFloatsOfValues = kValueScale == ScaleKind::row || kValueScale == ScaleKind::group;
  static constexpr bool kFollowsValues = kValueScale == ScaleKind::e8m0 || kFloatsOfValues;
  static constexpr bool kFollows = kFollowsKeys || kFollowsValues;
  static_assert(kD == 128 && kKeyInfo.bits < 16 && kValueInfo.bits < 16);
  /// What turns codes times scales of K into values, apart from the exponent or the scale of scores.
  static constexpr float kKeyUnit = kFollowsKeys || kGroupsOfKeys ? 1.0F : kKeyInfo.unit;
  // What the decode kernel's begin and end of a piece ask for. Threads and warps are those that multiply.
  static constexpr bool kRankOne = false, kPlain = false, kGeneral = false, kPairs = false, kPartWords = false;
  static constexpr int kRowBlocks = kRowBlockCount, kRows = kExpandRows * kRowBlocks, kRowTiles = kRows / 8;
  static constexpr int kChunks = kD / 32, kGroups = 2 / kRowBlocks;
  static constexpr int kTeams = 1, kWarps = 8, kThreads = 32 * kWarps, kBlockThreads = 2 * kThreads;
  static constexpr int kConsumerRegisters = kRowBlocks == 1 && !kFollowsKeys ? 176 : 184,
                       kProducerRegisters = 256 - kConsumerRegisters;  // of 512 threads with 128 each

  // Expanded tiles: K of all stages, V of all stages; channels 0 to 63 of all keys, then the others.
  static constexpr int kHalfBytes = kExpandKeys * 128, kTileBytes = kD / 64 * kHalfBytes;
  // Stored codes of K and of V, and their scales.
  static constexpr int kKeyRowBytes = kD * kKeyInfo.bits / 8, kValueRowBytes = kD * kValueInfo.bits / 8;
  static constexpr int kKeyScaleBytes = scale_room(kKey, kD), kValueScaleBytes = scale_room(kValue, kD);
  static constexpr int kValuesAt = kExpandKeys * kKeyRowBytes;
  static constexpr int kKeyScalesAt = kValuesAt + kExpandKeys * kValueRowBytes;
  static constexpr int kValueScalesAt = kKeyScalesAt + kExpandKeys * kKeyScaleBytes;
  static constexpr int kRawBytes = kValueScalesAt + kExpandKeys * kValueScaleBytes;
  static_assert(kRawBytes % 128 == 0);

  // See Control: of a stage, and of a key of it.
  static constexpr int kBrokenBytes = kValueInfo.has_nan ? 16 : 1, kKeyBytes = kBrokenBytes + (kScalesScores ? 4 : 0);
  static constexpr int kControlBytes = 4 * (48 + kExpandKeys * kKeyBytes) + 64;
  static constexpr int kQueryBytes = kRows * kD * 2;
  static constexpr int kOtherBytes = kControlBytes + kQueryBytes + 8 * kRows * 4 + 256 + 2 * kWarps * kRows * 4;
  static constexpr int kMostSharedBytes = 227 * 1024;
  /// Stages of stored codes of each of two warpgroups, beside as many stages of tiles.
  static constexpr int raw_stages(int tiles) {
    return (kMostSharedBytes - kOtherBytes - 2 * tiles * kTileBytes) / kRawBytes / 2;
  }
  static constexpr int kStages = raw_stages(4) >= 2 ? 4 : 3;
  static constexpr int kRawStages = raw_stages(kStages) < 4 ? raw_stages(kStages) : 4;
  static_assert(kRawStages >= 2);
  // A warpgroup waits for its next tile before its turn to multiply: that must not need what the other has yet to free.
  static_assert(kStages >= 2 * kGroups);
  static constexpr int kTilesOfValuesAt = kStages * kTileBytes, kRawAt = 2 * kTilesOfValuesAt;
  static constexpr int kControlAt = kRawAt + 2 * kRawStages * kRawBytes, kRingBytes = kControlAt + kControlBytes;
  static constexpr int kSharedBytes = kRingBytes + kOtherBytes - kControlBytes;
  static_assert(kSharedBytes <= kMostSharedBytes);

  // Outputs of the warpgroups, where expanded tiles were.
  static constexpr int kOutBytes = kRows * kD * 4, kWarpBytes = kOutBytes, kOutOffset = 0;
  static_assert(kGroups * kOutBytes <= kRawAt);
};

}  // namespace mpfa::sm90
