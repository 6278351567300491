// Up to 8 rows of a KV head for the decode test: with 256 channels the verify kernel has them where it is faster, see
// verify/shapes.h.
#pragma once

#include "tests/cuda/support/decode_data.cuh"

namespace mpfa::test {

/// Calls run(name, change of the shape) for every case.
template <class Run>
void run_eight_row_cases(Run&& run) {
  const auto rows = [&](const char* name, auto&& change) {
    run(name, [&](CaseShape& s) {
      s.q_heads = 16, s.kv_heads = 2;
      change(s);
    });
  };
  rows("8 rows, ragged", [](CaseShape& s) { s.batch = 5, s.lengths = {1000, 0, 63, 64, 2049}, s.sinks = true; });
  rows("8 rows, several splits", [](CaseShape& s) { s.lengths = {5000}; });
  rows("8 rows, 20 sequences", [](CaseShape& s) { s.batch = 20, s.lengths.assign(20, 900); });
  rows("8 rows, window", [](CaseShape& s) { s.lengths = {900}, s.window_left = 100, s.page_size = 16; });
  rows("8 rows, means", [](CaseShape& s) { s.lengths = {900}, s.means = true; });
  rows("8 rows, heavy tails", [](CaseShape& s) { s.lengths = {4096}, s.data = Data::heavy_tail; });
  rows("8 rows, fixed split", [](CaseShape& s) { s.lengths = {3000}, s.fixed_split_keys = 512; });
  rows("2 queries of 4 heads", [](CaseShape& s) {
    s.q_heads = 8, s.batch = 3, s.lengths = {1, 2000, 64}, s.sq = 2, s.causal = true;
  });
  rows("6 rows", [](CaseShape& s) { s.q_heads = 24, s.kv_heads = 4, s.batch = 8, s.lengths.assign(8, 700); });
}

}  // namespace mpfa::test
