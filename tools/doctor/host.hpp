// The processor of this machine.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace mpfa::cli {

struct Host {
  std::string model;                                   // brand string, or "unknown"
  std::vector<std::pair<std::string, bool>> features;  // instruction sets that matter to the kernels
  unsigned threads = 0;                                // that this process may use
};
[[nodiscard]] Host inspect_host();

}  // namespace mpfa::cli
