// Body of an instantiation.
#pragma once

#include "cuda/sm90/expand/shapes.h"
#include "cuda/sm90/verify/kernel.cuh"
#include "cuda/sm90/verify/kernels.h"

namespace mpfa::sm90 {

template <class Config>
DecodeKernel verify_kernel_of() {
  return {reinterpret_cast<const void*>(&verify<Config>), Config::kSharedBytes, Config::kBlockThreads, Config::kTeams};
}

template <int kHeadDim, Operand kKey, Operand kValue, int kRowTiles>
DecodeKernel verify_kernel_of(std::int32_t teams, VerifyCase kind) {
  constexpr int kGroups = verify_groups(kHeadDim, kRowTiles, kValue);
  if constexpr (has_masked_verify_kernel(kHeadDim, {kKey, kValue}) &&
                kRowTiles <= most_masked_row_tiles({kKey, kValue})) {
    if (kind == VerifyCase::masked) {
      return verify_kernel_of<VerifyConfig<kHeadDim, kKey, kValue, kRowTiles, 1, VerifyCase::masked>>();
    }
  }
  if constexpr (has_rounded_verify_kernel(kHeadDim, {kKey, kValue})) {
    if (kind == VerifyCase::rounded) {
      if (teams == kGroups) {
        return verify_kernel_of<VerifyConfig<kHeadDim, kKey, kValue, kRowTiles, kGroups, VerifyCase::rounded>>();
      }
      return verify_kernel_of<VerifyConfig<kHeadDim, kKey, kValue, kRowTiles, 1, VerifyCase::rounded>>();
    }
  }
  if constexpr (has_expand_kernel(kHeadDim, {kKey, kValue}) && is_expand_faster(64, {kKey, kValue}, kRowTiles) &&
                kRowTiles == 8) {
    return {};
  } else {
    if constexpr (kGroups == 4) {
      if (teams == 2) return verify_kernel_of<VerifyConfig<kHeadDim, kKey, kValue, kRowTiles, 2>>();
    }
    if (teams == kGroups) return verify_kernel_of<VerifyConfig<kHeadDim, kKey, kValue, kRowTiles, kGroups>>();
    if constexpr (has_verify_clusters(kHeadDim, {kKey, kValue})) {
      if (kind == VerifyCase::merging) {
        return verify_kernel_of<VerifyConfig<kHeadDim, kKey, kValue, kRowTiles, 1, VerifyCase::merging>>();
      }
    }
    return verify_kernel_of<VerifyConfig<kHeadDim, kKey, kValue, kRowTiles>>();
  }
}

template <int kHeadDim, Operand kKey, Operand kValue>
DecodeKernel verify_kernel(std::int32_t row_tiles, std::int32_t teams, VerifyCase kind) {
  if constexpr (verify_row_tiles(kHeadDim, 16, {kKey, kValue}) == 2) {
    if (row_tiles == 2) return verify_kernel_of<kHeadDim, kKey, kValue, 2>(teams, kind);
  }
  if constexpr (verify_row_tiles(kHeadDim, 64, {kKey, kValue}) == 8) {
    if (row_tiles == 8) return verify_kernel_of<kHeadDim, kKey, kValue, 8>(teams, kind);
  }
  return verify_kernel_of<kHeadDim, kKey, kValue, 4>(teams, kind);
}

}  // namespace mpfa::sm90
