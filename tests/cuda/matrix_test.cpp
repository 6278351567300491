// Every cell of the support matrix that sm_90 takes is run on the card against the reference over the same bytes. The
// check at the end reads what calls really ran.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "matrix/cells.hpp"
#include "tests/cuda/support/filled_call.hpp"

namespace mpfa::test {
namespace {

using matrix::Cell;

class DeviceMatrix : public ::testing::TestWithParam<std::string> {
 protected:
  void run_if_supported(const AttentionProblem& p, const matrix::Feature& feature) {
    if (!matrix::supports_feature(p, feature, Device::sm90).supported()) return;
    Filled filled(p, seed_++, {}, feature.shared_kv);
    FilledCall call(filled);
    const Status s = call.run();
    ASSERT_TRUE(s.ok()) << s.message();
    std::vector<double> want, want_lse;
    ASSERT_TRUE(reference::attend(p, filled.tensors, reference::Precision::f64, want, want_lse).ok());
    const double rounding = p.out_dtype == DType::bf16 ? 4e-3 : p.out_dtype == DType::f16 ? 5e-4 : 0.0;
    // e4m3 codes of P are relative to a maximum that other tiles than the reference's have raised.
    const double bound = p.recipe.p == PMode::e4m3 ? 5e-2 : kernel_tolerance(p.recipe);
    EXPECT_LE(relative_l2(call.out(), want), bound + rounding);
    EXPECT_LE(max_difference(call.lse(), want_lse), 10 * bound);
    for (Cell& cell : matrix::cells_of_call(p, filled.tensors)) ran_.push_back(std::move(cell));
  }

  std::vector<Cell> ran_;
  unsigned seed_ = 0;
};

TEST_P(DeviceMatrix, EveryAdvertisedCellAgreesWithTheReference) {
  const std::string& format = GetParam();
  for (const matrix::Phase& phase : matrix::phases()) {
    for (const matrix::Feature& feature : matrix::features()) {
      SCOPED_TRACE(phase.name + " " + feature.group + " " + feature.name);
      AttentionProblem p = matrix::plain_problem(format, format, phase, Device::sm90);
      feature.apply(p);
      run_if_supported(p, feature);
    }
    for (const std::string& v_format : format_names()) {
      SCOPED_TRACE(phase.name + " with V in " + v_format);
      run_if_supported(matrix::plain_problem(format, v_format, phase, Device::sm90), {});
    }
  }
  std::string missing;
  for (const Cell& cell : matrix::missing_cells(matrix::advertised_cells(format, Device::sm90), ran_)) {
    missing += matrix::cell_text(cell) + "\n";
  }
  EXPECT_EQ(missing, "");
}

/// Formats of which the device takes some cell.
std::vector<std::string> formats_taken() {
  std::vector<std::string> taken;
  for (const std::string& format : format_names()) {
    if (!matrix::advertised_cells(format, Device::sm90).empty()) taken.push_back(format);
  }
  return taken;
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceMatrix, ::testing::ValuesIn(formats_taken()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace mpfa::test
