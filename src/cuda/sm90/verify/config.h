// Compile-time shape of the verify kernel.
#pragma once

#include "cuda/sm90/decode/config.h"
#include "cuda/sm90/verify/clusters.h"
#include "cuda/sm90/verify/shapes.h"

namespace mpfa::sm90 {

/// kTeamCount: teams of warpgroups in a block, see decode/team.cuh.
template <int kHeadDim, Operand kKeyOperand, Operand kValueOperand, int kRowTileCount, int kTeamCount = 1,
          VerifyCase kCase = VerifyCase::plain>
struct VerifyConfig {
  static constexpr int kD = kHeadDim;
  static constexpr Operand kKey = kKeyOperand, kValue = kValueOperand;
  static constexpr OperandInfo kKeyInfo = kOperandInfo<kKey>, kValueInfo = kOperandInfo<kValue>;
  static constexpr ScaleKind kKeyScale = verify_scale(kKey), kValueScale = verify_scale(kValue);
  // What the decode kernel's begin and end of a piece ask for.
  static constexpr bool kPlain = false, kGeneral = false, kCopies = false;
  static constexpr bool kMasked = kCase == VerifyCase::masked, kRoundsP = kCase == VerifyCase::rounded;
  /// Takes the queries of recipe `mpfa`, as in the decode kernel.
  static constexpr bool kRankOne = kRoundsP && OperandPair{kKey, kValue} == kMixedPair;
  static constexpr int kRowTiles = kRowTileCount, kRows = 8 * kRowTiles, kChunks = kD / 32;

  static constexpr int kBlockGroups = verify_groups(kD, kRowTiles, kValue), kBlockThreads = 128 * kBlockGroups;
  static constexpr int kTeams = kTeamCount, kGroups = kBlockGroups / kTeams;
  static constexpr int kWarps = 4 * kGroups, kThreads = 32 * kWarps;  // of a team
  // See cluster.cuh; without it the loop over tiles has more registers.
  static constexpr bool kMerges = kTeams == 1 && kCase != VerifyCase::plain && has_verify_clusters(kD, {kKey, kValue});
  /// Scales of a token are half of the word that the least copy has: the word with them comes, see scale_begin.
  static constexpr bool kPartWords = kD == 64 && (kKeyScale == ScaleKind::e8m0 || kKey == Operand::int4);
  static constexpr int kKeyRowBytes = kD * kKeyInfo.bits / 8, kValueRowBytes = kD * kValueInfo.bits / 8;
  static constexpr int kScores = kRows / 2;  // of a thread: keys g, g + 8 of its warp's 16, columns 8 n + 2 t + j
  static constexpr int kHalves = kD / 64;    // halves of chunks, 16 channels, that a warp has of V, see ValuePart
  static constexpr int kWarpChunks = kHalves > 1 ? kHalves / 2 : 1;
  /// Outputs of 256 channels leave few, and so do four warpgroups of 32 rows.
  static constexpr bool kFewRegisters = (kD == 256 && kRowTiles == 2) || (kD == 64 && kRowTiles == 4);
  /// Where few registers are left: P is added to the sums before it is known whether they fit; and nothing is kept or
  /// asked for early.
  static constexpr bool kAddsEarly = kMasked || kFewRegisters || kRoundsP || kValueInfo.bits > 8 ||
                                     (kValueInfo.bits == 8 && (kD != 128 || kRowTiles != 4));
  static constexpr bool kScarce = kMasked || kValueInfo.bits > 4 ||
                                  (kKeyScale == ScaleKind::group && kRowTiles == (kD < 256 ? 4 : 2));
  static_assert(has_verify_kernel(kD, {kKey, kValue}));

  // A stage: codes of K, codes of V, scales of K, scales of V, and what a mask tensor or the rank-one terms of up to 8
  // query heads have of the tile.
  static constexpr int kKeyScaleBytes = scale_room(kKey, kD), kValueScaleBytes = scale_room(kValue, kD);
  // From key to key; more bytes are a second block, 16 of every key.
  static constexpr int kKeyScaleStep = kKeyScaleBytes < 16 ? kKeyScaleBytes : 16;
  static constexpr int kValueScaleStep = kValueScaleBytes < 16 ? kValueScaleBytes : 16;
  static constexpr int kValuesAt = kVerifyKeys * kKeyRowBytes, kKeyScalesAt = kValuesAt + kVerifyKeys * kValueRowBytes;
  static constexpr int kValueScalesAt = kKeyScalesAt + kVerifyKeys * kKeyScaleBytes;
  static constexpr int kMaskAt = kValueScalesAt + kVerifyKeys * kValueScaleBytes, kTermsAt = kMaskAt;
  static constexpr int kStageBytes = kMaskAt + (kMasked ? kVerifyKeys * kRows * 4 : kRankOne ? kVerifyKeys * 32 : 0);

  // A group: stages, P twice, of every warp scales of V and of groups of K and (factor, maximum) of rows, and column
  // maxima of warps.
  static constexpr int kValueScratchBytes = kValueInfo.bits > 4
                                                ? 0
                                                : kWarpChunks*(kValueScale == ScaleKind::e4m3 ? 256 : 128);
  static constexpr int kScratchBytes = kValueScratchBytes + (kKeyScale == ScaleKind::group ? 16 * kChunks * 4 : 0);
  static constexpr int kProbabilityBytes = kVerifyKeys * kRows * 2;
  static constexpr int kOtherGroupBytes = 2 * kProbabilityBytes + 4 * (kScratchBytes + kRows * 8 + kRows * 4);
  static constexpr int kQueryBytes = kRowTiles * kChunks * 512;
  static constexpr int kMostSharedBytes = 227 * 1024;
  static constexpr int kOtherBytes = kQueryBytes + 8 * kRows * 4 + 256 + 2 * kWarps * kRows * 4;
  static constexpr int kStages =
      ((kMostSharedBytes / kTeams - kOtherBytes - 128) / kGroups - kOtherGroupBytes) / kStageBytes;
  static constexpr int kProbabilitiesAt = kStages * kStageBytes, kScratchAt = kProbabilitiesAt + 2 * kProbabilityBytes;
  static constexpr int kTopsAt = kScratchAt + 4 * kScratchBytes, kWarpMaximaAt = kTopsAt + 4 * kRows * 8;
  static constexpr int kGroupBytes = kProbabilitiesAt + kOtherGroupBytes;
  // The group's outputs lie at its end when a piece is done; the stages before them hold what comes next.
  static constexpr int kOutBytes = kRows * kD * 4, kOutOffset = (kGroupBytes - kOutBytes) / 128 * 128;
  static constexpr int kEarlyStages = kOutOffset / kStageBytes < kStages ? kOutOffset / kStageBytes : kStages;
  static_assert(kStages >= 2 && kEarlyStages >= 1);

  static constexpr int kWarpBytes = kGroupBytes;  // of Exchange::out, whose parts are those of groups
  static constexpr int kRingBytes = kGroups * kGroupBytes;
  static constexpr int kTeamBytes = (kRingBytes + kOtherBytes + 127) / 128 * 128, kSharedBytes = kTeams * kTeamBytes;
  static_assert(kStageBytes % 128 == 0 && kGroupBytes % 128 == 0 && kSharedBytes <= kMostSharedBytes);
};

}  // namespace mpfa::sm90
