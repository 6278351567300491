// Compile-time shape of the FP4 decode kernel.
#pragma once

namespace mpfa::sm90 {

enum class Fp4Scale { e8m0_32, e4m3_16 };  // mxfp4: one power of two per 32 channels; nvfp4: one e4m3 per 16

inline constexpr int kTileKeys = 32;
inline constexpr int kMaxSplits = 512;  // partial results of one row

/// kPlainCase: tiles lie inside pages with rows side by side, no softcap. The general case takes everything.
template <int kHeadDim, Fp4Scale kScaleType, int kRowTileCount, bool kPlainCase>
struct DecodeConfig {
  static constexpr int kD = kHeadDim;
  static constexpr Fp4Scale kScale = kScaleType;
  static constexpr bool kMx = kScale == Fp4Scale::e8m0_32;
  static constexpr bool kPlain = kPlainCase;
  static constexpr int kRowTiles = kRowTileCount;  // of 8 query rows: the columns of one MMA
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kChunks = kD / 32;                   // 16 bytes, 32 channels
  static constexpr int kScaleBytes = kD / (kMx ? 32 : 16);  // of one key
  // One block a multiprocessor: of two, the hardware prefers the older one, which is done long before the other.
  static constexpr int kWarps = kRowTiles == 1 && kD <= 128 ? 16 : kRowTiles == 2 && kD == 256 ? 6 : 8;
  static constexpr int kThreads = kWarps * 32;

  // Shared memory of one warp, bytes.
  static constexpr int kCodeBytes = kTileKeys * kD / 2;  // K or V of a tile
  static constexpr int kStageBytes = 2 * kCodeBytes;
  static constexpr int kKScaleBytes = kTileKeys * kChunks * (kMx ? 4 : 8);
  static constexpr int kVScaleBytes = kTileKeys * kScaleBytes * 2;
  // The last stage is also where the warp puts its output at the end of a piece; the others then hold what comes next.
  static constexpr int kOutBytes = kRows * kD * 4;
  static constexpr int kLastStageBytes = kOutBytes > kStageBytes ? kOutBytes : kStageBytes;
  static constexpr int kWarpBytes = 2 * kStageBytes + kLastStageBytes + kKScaleBytes + kVScaleBytes;
  static constexpr int kRingBytes = kWarps * kWarpBytes;
  static constexpr int kQueryBytes = kRowTiles * kChunks * 512;
  static constexpr int kSharedBytes = kRingBytes + kQueryBytes + (2 * kWarps + 4) * kRows * 4 + 256;
  static_assert(kSharedBytes <= 227 * 1024, "more than a block can have");
};

}  // namespace mpfa::sm90
