// The cells of the support matrix: every format as K and V in every phase with every feature, and every pair of
// formats. One list serves the printed matrix, the tests that run its cells, and the check that none was left out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mpfa/attention.hpp"

namespace mpfa::matrix {

/// Query rows of a sequence: one, a few, many. The kernels of a device differ by it.
struct Phase {
  std::string name;
  std::int64_t rows;  // of the problem that asks
  std::int64_t low, high;
};
[[nodiscard]] const std::vector<Phase>& phases();

/// Something a problem may ask for. `apply` asks for it; `seen` recognises it in a call, whoever made the call.
struct Feature {
  std::string group, name;
  std::function<void(AttentionProblem&)> apply;
  std::function<bool(const AttentionProblem&, const AttentionTensors&)> seen;
  bool shared_kv = false;  // the cache holds V as the first channels of K
};
[[nodiscard]] const std::vector<Feature>& features();

/// supports() of a problem that asks for the feature, with what the cache of the feature needs; the same in every
/// build.
[[nodiscard]] Support supports_feature(const AttentionProblem& problem, const Feature& feature, Device device);

inline constexpr std::int64_t kMaxQ = 20, kMaxKv = 97, kHeadDim = 64;

/// 4 query and 2 KV heads, two sequences, causal, without more. On the CPU q and P are float32, on a GPU q, P and the
/// output have 16 bits.
[[nodiscard]] AttentionProblem plain_problem(const std::string& k_format, const std::string& v_format,
                                             const Phase& phase, Device device);

/// The test, by its name for ctest, that runs every cell that the device takes.
[[nodiscard]] const char* covering_test(Device device);

struct Cell {
  std::string k_format, v_format, phase, feature;
  auto operator<=>(const Cell&) const = default;
};
[[nodiscard]] std::string cell_text(const Cell& cell);
/// Name of the feature of cells that ask for a pair of formats and no more.
inline constexpr const char* kPair = "pair";

/// Cells that `device` takes: one format as K and V with all features, and all pairs with it as K.
[[nodiscard]] std::vector<Cell> advertised_cells(const std::string& k_format, Device device);
/// Cells that a call ran.
[[nodiscard]] std::vector<Cell> cells_of_call(const AttentionProblem& problem, const AttentionTensors& tensors);
/// Advertised cells that are not among those that ran.
[[nodiscard]] std::vector<Cell> missing_cells(const std::vector<Cell>& advertised, std::vector<Cell> ran);

}  // namespace mpfa::matrix
