// main() of device tests: they say SKIPPED where no sm_90 card is current.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>

#include "mpfa/attention.hpp"

namespace mpfa::test {

inline int run_on_sm90(int argc, char** argv) {
  constexpr int kExitSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  if (const Status s = available(Device::sm90); !s.ok()) {
    std::printf("SKIPPED: %s\n", s.message().c_str());
    return kExitSkipped;
  }
  return RUN_ALL_TESTS();
}

}  // namespace mpfa::test
