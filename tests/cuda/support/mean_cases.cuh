// Means of K and V for the decode test: the short way with them, which kernels of one and of several teams, of windows
// and of 16 rows have, and calls that go the long way or to the kernels for many rows.
#pragma once

#include <cstdio>
#include <cstring>

#include "tests/cuda/support/decode_data.cuh"

namespace mpfa::test {

/// Calls run(name, change of the shape) for every case.
template <class Run>
void run_mean_cases(Run&& run) {
  const auto with_means = [&](const char* name, auto&& change) {
    run(name, [&](CaseShape& s) {
      s.means = true;
      change(s);
    });
  };
  for (const int batch : {1, 3, 8, 24, 32, 64}) {
    char name[60];
    std::snprintf(name, sizeof(name), "means, %d sequences", batch);
    with_means(name, [&](CaseShape& s) { s.batch = batch, s.lengths.assign(batch, 610), s.sinks = batch == 8; });
    std::snprintf(name, sizeof(name), "means, %d ragged", batch);
    with_means(name, [&](CaseShape& s) {
      s.batch = batch, s.lengths.assign(batch, 0), s.sinks = true;
      for (int b = 0; b < batch; ++b) s.lengths[b] = b == 1 ? 0 : 1 + b * 733 % 1500;
    });
    std::snprintf(name, sizeof(name), "means, window, %d sequences", batch);
    with_means(name, [&](CaseShape& s) {
      s.batch = batch, s.lengths.assign(batch, 1700), s.window_left = 127, s.forgets = true, s.sinks = batch == 3;
    });
  }
  with_means("means, one key", [](CaseShape& s) { s.lengths = {1}; });
  with_means("means, no keys and sinks", [](CaseShape& s) { s.lengths = {0}, s.sinks = true; });
  with_means("means, several splits", [](CaseShape& s) { s.lengths = {5000}; });
  with_means("means, one output, larger capacity",
             [](CaseShape& s) { s.q_heads = 8, s.kv_heads = 1, s.lengths = {700}, s.max_kv = 50000; });
  with_means("means, f16 queries", [](CaseShape& s) {
    s.lengths = {900}, s.q_bf16 = std::strcmp(s.k, "bf16") == 0;  // beside K in bf16, q is bf16
  });
  with_means("means, pages of 16", [](CaseShape& s) { s.lengths = {777}, s.page_size = 16; });
  with_means("means, pages of 16, 8 sequences",
             [](CaseShape& s) { s.batch = 8, s.lengths.assign(8, 2111), s.page_size = 16, s.sinks = true; });
  with_means("means, pages of 48, 40 sequences",
             [](CaseShape& s) { s.batch = 40, s.lengths.assign(40, 610), s.page_size = 48; });
  with_means("means, pages of 24", [](CaseShape& s) { s.lengths = {777}, s.page_size = 24; });
  with_means("means, softcap", [](CaseShape& s) { s.lengths = {900}, s.softcap = 3.0F; });
  with_means("means, fixed split", [](CaseShape& s) {
    s.batch = 3, s.lengths = {5000, 100, 2048}, s.fixed_split_keys = 512;
  });
  for (const int sq : {2, 4, 8, 16, 20}) {
    char name[60];
    std::snprintf(name, sizeof(name), "means, %d rows", 4 * sq);
    with_means(name, [&](CaseShape& s) { s.batch = 2, s.lengths = {900, 901}, s.sq = sq, s.causal = true; });
  }
}

}  // namespace mpfa::test
