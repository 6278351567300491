// `mpfa attend`: one attention call over the tensors of a file, measured against exact float64 attention.
#pragma once

#include <cstdint>
#include <string>

#include "mpfa/status.hpp"

namespace mpfa::cli {

struct AttendOptions {
  std::string file;
  std::string recipe;
  bool causal = false;
  std::int64_t window_left = -1, window_right = -1;
  float scale = 0.0F;    // 0: 1 / sqrt(head_dim)
  float softcap = 0.0F;  // 0: off
  std::int64_t page_size = 64;
  int threads = 0;  // 0: all
  std::string out;  // safetensors file for out and lse, empty for none
  bool json = false;
};

/// The report. Recipes with a phase switch are measured after it, as decode reads them.
[[nodiscard]] Result<std::string> attend_report(const AttendOptions& options);

}  // namespace mpfa::cli
