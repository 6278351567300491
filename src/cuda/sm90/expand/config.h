// Compile-time shape of the kernel for many rows.
#pragma once

#include <type_traits>

#include "cuda/sm90/decode/config.h"
#include "cuda/sm90/expand/shapes.h"
#include "cuda/sm90/verify/shapes.h"

namespace mpfa::sm90 {

/// kRowBlockCount: blocks of 64 rows. With one, two warpgroups have every other tile; with two, a row block each.
template <int kHeadDim, Operand kKeyOperand, Operand kValueOperand, int kRowBlockCount>
struct ExpandShape {
  static constexpr int kD = kHeadDim;
  static constexpr Operand kKey = kKeyOperand, kValue = kValueOperand;
  static constexpr OperandInfo kKeyInfo = kOperandInfo<kKey>, kValueInfo = kOperandInfo<kValue>;
  static constexpr ScaleKind kKeyScale = verify_scale(kKey), kValueScale = verify_scale(kValue);
  /// Nothing is expanded: tiles are copies of stored rows.
  static constexpr bool kCopies = kKeyInfo.bits == 16;
  static constexpr bool kMerges = expands_all_rows(kD, {kKey, kValue});  // see verify/cluster.cuh
  /// Scales are relative to exponents that warps follow; those of tokens of K, and the largest of a key's groups,
  /// multiply scores instead.
  static constexpr bool kFollowsKeys = kKeyScale == ScaleKind::e8m0;
  static constexpr bool kGroupsOfKeys = kKeyScale == ScaleKind::group;
  static constexpr bool kScalesScores = kKeyScale == ScaleKind::row || kGroupsOfKeys;
  /// f32 or f16 scales of V, of tokens or groups.
  static constexpr bool kFloatsOfValues = kValueScale == ScaleKind::row || kValueScale == ScaleKind::group;
  static constexpr bool kFollowsValues = kValueScale == ScaleKind::e8m0 || kFloatsOfValues;
  static constexpr bool kFollows = kFollowsKeys || kFollowsValues;
  static_assert(has_expand_kernel(kD, {kKey, kValue}));
  /// What turns codes times scales of K into values, apart from the exponent or the scale of scores.
  static constexpr float kKeyUnit = kFollowsKeys || kGroupsOfKeys ? 1.0F : kKeyInfo.unit;
  // What the decode kernel's begin and end of a piece ask for. Threads and warps are those that multiply.
  static constexpr bool kRankOne = false, kPlain = false, kGeneral = false, kPairs = false, kPartWords = false;
  static constexpr int kRowBlocks = kRowBlockCount, kRows = kExpandRows * kRowBlocks, kRowTiles = kRows / 8;
  static constexpr int kChunks = kD / 32, kGroups = 2 / kRowBlocks;
  static constexpr int kTeams = 1, kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kKeyRowBytes = kD * kKeyInfo.bits / 8, kValueRowBytes = kD * kValueInfo.bits / 8;

  // Tiles in shared memory: K of all stages, V of all stages; channels 0 to 63 of all keys, then the next 64.
  static constexpr int kKeys = expand_keys(kD);
  static constexpr int kRowScores = kKeys / 2;  // of a thread: [n * 4 + r * 2 + j]: row g + 8 r, key 8 n + 2 t + j
  static constexpr int kPartBytes = kKeys * 128, kTileBytes = kD / 64 * kPartBytes;
  static constexpr int kQueryBytes = kRows * kD * 2, kOutBytes = kRows * kD * 4;
  // See Control: of a key of a stage.
  static constexpr int kBrokenBytes = kValueInfo.has_nan && !kCopies ? 16 : 1;
  static constexpr int kKeyBytes = kBrokenBytes + (kScalesScores ? 4 : 0);
  static constexpr int control_bytes(int stages) { return stages * (48 + kKeys * kKeyBytes) + 64; }
  /// What lies behind queries.
  static constexpr int kMergeBytes = 8 * kRows * 4 + 256 + 2 * kWarps * kRows * 4;
  static constexpr int kMostSharedBytes = 227 * 1024;
};

/// With stored codes in shared memory beside tiles of f16.
template <int kHeadDim, Operand kKeyOperand, Operand kValueOperand, int kRowBlockCount>
struct CodesConfig : ExpandShape<kHeadDim, kKeyOperand, kValueOperand, kRowBlockCount> {
  using Shape = ExpandShape<kHeadDim, kKeyOperand, kValueOperand, kRowBlockCount>;
  using Shape::kD, Shape::kKey, Shape::kValue, Shape::kKeys, Shape::kGroups, Shape::kTileBytes, Shape::kOutBytes,
      Shape::kKeyRowBytes, Shape::kValueRowBytes, Shape::kMostSharedBytes;
  static constexpr int kBlockThreads = 2 * Shape::kThreads, kFullArrivals = 4;
  static constexpr int kConsumerRegisters = Shape::kRowBlocks == 1 && !Shape::kFollowsKeys ? 176 : 184,
                       kProducerRegisters = 256 - kConsumerRegisters;  // of 512 threads with 128 each

  // Stored codes of K and of V, and their scales.
  static constexpr int kKeyScaleBytes = scale_room(kKey, kD), kValueScaleBytes = scale_room(kValue, kD);
  static constexpr int kKeyScaleStep = kKeyScaleBytes, kValueScaleStep = kValueScaleBytes;  // from key to key
  static_assert(kKeyScaleBytes <= 16 && kValueScaleBytes <= 16);
  static constexpr int kValuesAt = kKeys * kKeyRowBytes;
  static constexpr int kKeyScalesAt = kValuesAt + kKeys * kValueRowBytes;
  static constexpr int kValueScalesAt = kKeyScalesAt + kKeys * kKeyScaleBytes;
  static constexpr int kRawBytes = kValueScalesAt + kKeys * kValueScaleBytes;
  static_assert(kRawBytes % 128 == 0);

  static constexpr int kControlBytes = Shape::control_bytes(4);
  static constexpr int kOtherBytes = kControlBytes + Shape::kQueryBytes + Shape::kMergeBytes;
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
  static constexpr int kWarpBytes = kOutBytes, kOutOffset = 0;
  static_assert(kGroups * kOutBytes <= kRawAt);
};

/// With tiles only, which four warps copy.
template <int kHeadDim, Operand kKeyOperand, Operand kValueOperand, int kRowBlockCount>
struct CopyConfig : ExpandShape<kHeadDim, kKeyOperand, kValueOperand, kRowBlockCount> {
  using Shape = ExpandShape<kHeadDim, kKeyOperand, kValueOperand, kRowBlockCount>;
  using Shape::kGroups, Shape::kTileBytes, Shape::kOutBytes, Shape::kMostSharedBytes;
  static constexpr int kCopyThreads = 128, kBlockThreads = Shape::kThreads + kCopyThreads;
  static constexpr int kFullArrivals = kCopyThreads;
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;  // of 384 threads with 168 each

  static constexpr int kMostControlBytes = Shape::control_bytes(8) + 1023;
  static constexpr int kStages =
      (kMostSharedBytes - kMostControlBytes - Shape::kQueryBytes - Shape::kMergeBytes) / (2 * kTileBytes);
  static_assert(kStages >= 2 * kGroups && kStages <= 8);
  static constexpr int kTilesOfValuesAt = kStages * kTileBytes, kControlAt = 2 * kTilesOfValuesAt;
  static constexpr int kControlBytes = (Shape::control_bytes(kStages) + 1023) / 1024 * 1024;  // q is swizzled
  static constexpr int kRingBytes = kControlAt + kControlBytes;
  static constexpr int kSharedBytes = kRingBytes + Shape::kQueryBytes + Shape::kMergeBytes;
  static_assert(kSharedBytes <= kMostSharedBytes);

  // Outputs of the warpgroups, where tiles were.
  static constexpr int kWarpBytes = kOutBytes, kOutOffset = 0;
  static_assert(kGroups * kOutBytes <= kControlAt);
};

template <int kHeadDim, Operand kKey, Operand kValue, int kRowBlocks>
using ExpandConfig = std::conditional_t<operand_info(kKey).bits == 16, CopyConfig<kHeadDim, kKey, kValue, kRowBlocks>,
                                        CodesConfig<kHeadDim, kKey, kValue, kRowBlocks>>;

}  // namespace mpfa::sm90
