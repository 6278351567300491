// Every cell of the support matrix that the CPU takes is run against the reference; what it refuses, it refuses with a
// reason. The check at the end reads what calls really ran, not what this file meant to run.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "matrix/cells.hpp"
#include "tests/support/filled.hpp"

namespace mpfa::test {
namespace {

using matrix::Cell;

/// Collects the cells of all calls while it lives.
class Recorder {
 public:
  Recorder() {
    on_attend_cpu = [this](const AttentionProblem& p, const AttentionTensors& t) {
      for (Cell& cell : matrix::cells_of_call(p, t)) cells.push_back(std::move(cell));
    };
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder() { on_attend_cpu = nullptr; }
  std::vector<Cell> cells;
};

void run_or_refuse(const AttentionProblem& p, const matrix::Feature& feature, unsigned seed) {
  const Support support = matrix::supports_feature(p, feature, Device::cpu);
  if (support.supported()) {
    Filled(p, seed, {}, feature.shared_kv).compare();
    return;
  }
  ASSERT_FALSE(support.reasons.empty());
  for (const std::string& reason : support.reasons) EXPECT_GT(reason.size(), 20U) << reason;
  if (feature.shared_kv) return;  // the cache refuses
  EXPECT_NE(plan(p, Device::cpu).status().message().find(support.reasons.front()), std::string::npos);
}

std::string joined(const std::vector<Cell>& cells) {
  std::string text;
  for (const Cell& cell : cells) text += matrix::cell_text(cell) + "\n";
  return text;
}

class Matrix : public ::testing::TestWithParam<std::string> {};

TEST_P(Matrix, EveryAdvertisedCellAgreesWithTheReference) {
  const std::string& format = GetParam();
  const Recorder recorder;
  unsigned seed = 0;
  for (const matrix::Phase& phase : matrix::phases()) {
    for (const matrix::Feature& feature : matrix::features()) {
      SCOPED_TRACE(phase.name + " " + feature.group + " " + feature.name);
      AttentionProblem p = matrix::plain_problem(format, format, phase, Device::cpu);
      feature.apply(p);
      p.threads = 1 + static_cast<int>(seed % 2);
      run_or_refuse(p, feature, seed++);
    }
    for (const std::string& v_format : format_names()) {
      SCOPED_TRACE(phase.name + " with V in " + v_format);
      AttentionProblem p = matrix::plain_problem(format, v_format, phase, Device::cpu);
      p.max_q = std::min<std::int64_t>(p.max_q, 9);
      p.batch = 1;
      run_or_refuse(p, {}, seed++);
    }
  }
  EXPECT_EQ(joined(matrix::missing_cells(matrix::advertised_cells(format, Device::cpu), recorder.cells)), "");
}

INSTANTIATE_TEST_SUITE_P(Formats, Matrix, ::testing::ValuesIn(format_names()), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST(Cells, ARunThatIsLeftOutIsMissed) {
  const Recorder recorder;
  std::vector<std::string> left_out;
  for (const matrix::Phase& phase : matrix::phases()) {
    for (const matrix::Feature& feature : matrix::features()) {
      if (feature.name == "sinks" && phase.name == "verify") continue;
      AttentionProblem p = matrix::plain_problem("fp8_e4m3", "fp8_e4m3", phase, Device::cpu);
      feature.apply(p);
      if (supports_feature(p, feature, Device::cpu).supported()) Filled(p, 1, {}, feature.shared_kv).compare();
    }
  }
  std::vector<Cell> advertised = matrix::advertised_cells("fp8_e4m3", Device::cpu);
  std::erase_if(advertised, [](const Cell& c) { return c.feature == matrix::kPair; });
  EXPECT_EQ(joined(matrix::missing_cells(advertised, recorder.cells)),
            "k=fp8_e4m3,v=fp8_e4m3 / verify / logits: sinks\n");
}

TEST(Cells, EveryDeviceThatTakesSomeHasATestThatRunsThem) {
  for (const Device device : {Device::cpu, Device::sm90, Device::sm100, Device::sm120}) {
    std::size_t cells = 0;
    for (const std::string& format : format_names()) cells += matrix::advertised_cells(format, device).size();
    EXPECT_EQ(cells > 0, *matrix::covering_test(device) != '\0') << static_cast<int>(device);
  }
}

}  // namespace
}  // namespace mpfa::test
