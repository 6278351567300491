// Windows for the decode test: the short way of windows, which kernels of one and of several teams have, and calls that
// go the long way. Tokens and pages before the windows are mostly gone.
#pragma once

#include <cstdio>

#include "tests/cuda/support/decode_data.cuh"

namespace mpfa::test {

/// Calls run(name, change of the shape) for every case.
template <class Run>
void run_window_cases(Run&& run) {
  for (const int window : {1, 128, 1024}) {
    for (const int batch : {1, 8, 24, 32, 64}) {
      char name[60];
      std::snprintf(name, sizeof(name), "window of %d, %d sequences", window, batch);
      const auto cut = [&](CaseShape& s) {
        s.batch = batch, s.lengths.assign(batch, 2800), s.window_left = window - 1, s.forgets = true, s.sinks = true;
      };
      run(name, cut);
      if (batch == 64) continue;
      std::snprintf(name, sizeof(name), "window of %d, %d ragged", window, batch);
      run(name, [&](CaseShape& s) {
        cut(s);
        s.sq = 2, s.causal = true;
        for (int b = 0; b < batch; ++b) s.lengths[b] = b == 3 ? 0 : 1 + b * 733 % 2800;
      });
    }
    run("window, pages of 16", [&](CaseShape& s) {
      s.batch = 2, s.lengths = {1500, 1403}, s.page_size = 16, s.window_left = window - 1, s.forgets = true;
    });
  }
  for (const int window : {2500, 4096, 12000}) {
    char name[60];
    std::snprintf(name, sizeof(name), "window of %d", window);
    run(name, [&](CaseShape& s) { s.lengths = {window + 1700}, s.window_left = window - 1, s.forgets = true; });
  }
  run("window, several splits, 5 sequences", [](CaseShape& s) {
    s.batch = 5, s.lengths = {6000, 3000, 0, 5999, 4096}, s.window_left = 4095, s.forgets = true;
  });
  run("window, 16 rows", [](CaseShape& s) {
    s.batch = 8, s.lengths.assign(8, 1805), s.sq = 4, s.causal = true, s.window_left = 127, s.forgets = true;
  });
  run("window of more than the keys", [](CaseShape& s) { s.lengths = {700}, s.window_left = 5000; });
  run("window, capacity of more", [](CaseShape& s) { s.lengths = {700}, s.window_left = 300, s.max_kv = 100000; });
  run("window, fixed split", [](CaseShape& s) {
    s.batch = 3, s.lengths = {5000, 100, 2048}, s.window_left = 1200, s.fixed_split_keys = 512, s.forgets = true;
  });
}

}  // namespace mpfa::test
