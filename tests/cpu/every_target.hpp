// Kernels compiled for several instruction sets: a test body for each that this machine has.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <random>
#include <vector>

#include "cpu/tile_ops.hpp"

namespace mpfa::cpu {

/// Runs `body` once per instruction set that this machine has and the compiler offered.
template <class Body>
void on_every_target(Body body) {
  const auto all = hwy::SupportedTargets();
  for (auto rest = all; rest != 0; rest &= rest - 1) {
    const auto target = rest & -rest;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(instruction_set());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

inline std::vector<float> normal(std::size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> dist;
  std::vector<float> x(n);
  for (float& v : x) v = dist(rng);
  return x;
}

}  // namespace mpfa::cpu
