// The decode kernel against attention in float64 over the same cache bytes. Needs an sm_90 card; without one it
// says SKIPPED and exits with 77.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "tests/cuda/support/decode_case.cuh"
#include "tests/cuda/support/eight_row_cases.cuh"
#include "tests/cuda/support/mean_cases.cuh"
#include "tests/cuda/support/window_cases.cuh"

namespace {

using mpfa::test::CaseShape;
using mpfa::test::Data;
using mpfa::test::DecodeCase;
using mpfa::test::MaskData;
using mpfa::test::run_eight_row_cases;
using mpfa::test::run_mean_cases;
using mpfa::test::run_window_cases;

constexpr int kExitSkipped = 77;
constexpr double kOutTolerance = 1e-3;       // P has 11 bits; measured 1.5e-4 to 4e-4
constexpr double kF16QueryTolerance = 4e-4;  // beside mxfp4 keys; 7e-4 without the third e4m3 term of q
constexpr double kBf16OutTolerance = 4e-3;   // P has 8 bits
constexpr double kLseTolerance = 2e-4;       // f32 sums of logits up to about 100
// K as e4m3, whose MMAs keep 14 bits of a score: measured 2.3e-4, and 8e-4 with heavy tails.
constexpr double kE4m3LseTolerance = 3e-4, kE4m3TailsTolerance = 1e-3;
// K's codes times scales of groups in f16 lose 2^-11 of a score: measured 7e-4 with one to 60 keys, 2.2e-3 with tails.
constexpr double kGroupsLseTolerance = 1e-3, kGroupsTailsTolerance = 4e-3;

int failures = 0;

double lse_tolerance(const DecodeCase& c) {
  // Other kernels than that of up to 16 rows, which also takes more of few outputs, multiply in f16.
  const CaseShape& s = c.shape();
  const bool few = c.launch().row_tiles <= 2 && (!c.launch().verify || c.launch().groups);
  const bool e4m3 =
      std::strcmp(s.k, "mxfp4") == 0 && s.head_dim <= 128 && few && s.mask == MaskData::none && s.softcap == 0.0F;
  const bool tails = s.data == Data::heavy_tail;
  const bool groups = std::strncmp(s.k, "mxfp4_f32", 9) == 0 || std::strncmp(s.k, "int4_g", 6) == 0;
  if (groups && c.launch().expand && s.data != Data::k_bias) return tails ? kGroupsTailsTolerance : kGroupsLseTolerance;
  return (!e4m3 ? kLseTolerance : tails ? kE4m3TailsTolerance : kE4m3LseTolerance) * (s.data == Data::k_bias ? 20 : 1);
}

void expect(const char* name, const DecodeCase& c) {
  const DecodeCase::Errors e = c.check();
  const bool mxfp4 = std::strcmp(c.shape().k, "mxfp4") == 0;
  const double out_tolerance = std::strcmp(c.shape().v, "bf16") == 0 ? kBf16OutTolerance
                               : mxfp4 && !c.shape().q_bf16          ? kF16QueryTolerance
                                                                     : kOutTolerance;
  const bool ok = e.out <= out_tolerance && e.lse <= lse_tolerance(c);
  if (!ok) ++failures;
  std::printf("%s %-28s %s %s d%-3d out %.2e lse %.2e\n", ok ? "ok    " : "FAILED", name, c.shape().k, c.shape().v,
              c.shape().head_dim, e.out, e.lse);
}

void check_formats(const char* k, const char* v, int head_dim) {
  CaseShape base;
  base.k = k, base.v = v, base.head_dim = head_dim;
  const auto with = [&](auto&& change) {
    CaseShape s = base;
    change(s);
    return s;
  };
  const auto run = [&](const char* name, auto&& change) { expect(name, DecodeCase(with(change), 3)); };

  run("one key", [](CaseShape& s) { s.lengths = {1}; });
  run("short", [](CaseShape& s) { s.lengths = {37}; });
  run("several splits", [](CaseShape& s) { s.lengths = {5000}; });
  run("one output", [](CaseShape& s) { s.q_heads = 8, s.kv_heads = 1, s.lengths = {9300}; });
  run("one output, larger capacity",
      [](CaseShape& s) { s.q_heads = 8, s.kv_heads = 1, s.lengths = {700}, s.max_kv = 50000; });
  run("four outputs, fewer tiles than blocks",
      [](CaseShape& s) { s.q_heads = 12, s.kv_heads = 4, s.lengths = {70}, s.max_kv = 20000; });
  run("two outputs, larger capacity", [](CaseShape& s) {
    s.batch = 2, s.q_heads = 8, s.kv_heads = 1, s.lengths = {2000, 1980}, s.max_kv = 20000;
  });
  run("two blocks for every output",
      [](CaseShape& s) { s.batch = 8, s.lengths = {900, 900, 899, 870, 900, 890, 900, 897}; });
  run("ragged with an empty one", [](CaseShape& s) { s.batch = 5, s.lengths = {1000, 0, 63, 64, 2049}; });
  run("many sequences", [](CaseShape& s) {
    s.batch = 70, s.lengths.clear();
    for (int b = 0; b < 70; ++b) s.lengths.push_back(b * 37 % 301);
  });
  run("bias channel in K", [](CaseShape& s) { s.lengths = {700}, s.data = Data::k_bias; });
  run("sink token", [](CaseShape& s) { s.lengths = {3000}, s.data = Data::sink_token; });
  run("heavy tails", [](CaseShape& s) { s.lengths = {3000}, s.data = Data::heavy_tail; });
  // Beside K in bf16, q is bf16.
  if (std::strcmp(k, "bf16") != 0) run("f16 queries", [](CaseShape& s) { s.lengths = {900}, s.q_bf16 = false; });
  run("pages of 1", [](CaseShape& s) { s.lengths = {333}, s.page_size = 1; });
  run("pages of 16", [](CaseShape& s) { s.lengths = {777}, s.page_size = 16; });
  run("pages of 16, ends of halves", [](CaseShape& s) {
    s.batch = 5, s.lengths = {16, 17, 1000, 0, 33}, s.page_size = 16, s.max_kv = 1040;
  });
  run("pages of 16, window", [](CaseShape& s) { s.lengths = {900}, s.page_size = 16, s.window_left = 100; });
  run("pages of 48, many outputs", [](CaseShape& s) { s.batch = 40, s.lengths.assign(40, 270), s.page_size = 48; });
  run("pages of 24", [](CaseShape& s) { s.lengths = {777}, s.page_size = 24; });
  run("pages of 256", [](CaseShape& s) { s.lengths = {1111}, s.page_size = 256; });
  run("causal, 4 queries, group 4", [](CaseShape& s) { s.lengths = {901}, s.sq = 4, s.causal = true; });
  run("5 queries, more than keys", [](CaseShape& s) { s.lengths = {3}, s.sq = 5, s.causal = true; });
  run("16 queries, 64 rows", [](CaseShape& s) { s.lengths = {650}, s.sq = 16, s.causal = true; });
  run("group 1", [](CaseShape& s) { s.lengths = {600}, s.q_heads = 8; });
  run("group 8", [](CaseShape& s) { s.lengths = {600}, s.q_heads = 16, s.kv_heads = 2; });
  run("group 16", [](CaseShape& s) { s.lengths = {600}, s.q_heads = 16, s.kv_heads = 1; });
  run("group 7", [](CaseShape& s) { s.lengths = {600}, s.q_heads = 28, s.kv_heads = 4; });
  run("window", [](CaseShape& s) { s.lengths = {900}, s.sq = 2, s.causal = true, s.window_left = 100; });
  run("window to the right", [](CaseShape& s) { s.lengths = {900}, s.sq = 3, s.window_left = 65, s.window_right = 1; });
  run("softcap", [](CaseShape& s) { s.lengths = {900}, s.softcap = 3.0F; });
  run("sinks", [](CaseShape& s) { s.batch = 2, s.lengths = {900, 0}, s.sinks = true; });
  run("sinks, equal lengths", [](CaseShape& s) { s.batch = 2, s.lengths = {900, 900}, s.sinks = true; });
  run("sinks, no keys", [](CaseShape& s) { s.lengths = {0}, s.sinks = true; });
  run("fixed split", [](CaseShape& s) { s.batch = 3, s.lengths = {5000, 100, 2048}, s.fixed_split_keys = 512; });

  // 12, 32, 64, 80 and 160 rows of a KV head.
  for (const int sq : {3, 8, 16, 20, 40}) {
    char name[60];
    const auto rows = [&](const char* what, auto&& change) {
      std::snprintf(name, sizeof(name), "%d rows, %s", 4 * sq, what);
      run(name, [&](CaseShape& s) {
        s.sq = sq, s.causal = true;
        change(s);
      });
    };
    rows("ragged", [](CaseShape& s) { s.batch = 5, s.lengths = {1000, 0, 63, 64, 2049}; });
    rows("several splits", [](CaseShape& s) { s.lengths = {5000}; });
    rows("40 sequences", [](CaseShape& s) { s.batch = 40, s.lengths.assign(40, 270); });
    rows("all keys", [](CaseShape& s) { s.lengths = {512}, s.causal = false; });
    rows("pages of 16", [](CaseShape& s) { s.lengths = {777}, s.page_size = 16; });
    rows("pages of 48", [](CaseShape& s) { s.lengths = {777}, s.page_size = 48; });
    rows("bias channel in K", [](CaseShape& s) { s.lengths = {700}, s.data = Data::k_bias; });
    rows("window and sinks", [](CaseShape& s) { s.lengths = {900}, s.window_left = 100, s.sinks = true; });
    rows("fixed split", [](CaseShape& s) { s.batch = 3, s.lengths = {5000, 100, 2048}, s.fixed_split_keys = 512; });
    for (const bool additive : {false, true}) {
      const auto masked = [&](const char* what, MaskData mask, auto&& change) {
        rows(what, [&](CaseShape& s) {
          s.mask = mask, s.additive = additive, s.causal = false;
          change(s);
        });
      };
      masked("tree", MaskData::tree, [](CaseShape& s) { s.batch = 3, s.lengths = {1000, 64, 2049}; });
      masked("mask of heads", MaskData::random, [](CaseShape& s) { s.lengths = {1204}, s.mask_heads = true; });
      masked("mask and window", MaskData::random, [](CaseShape& s) {
        s.batch = 4, s.lengths = {1200, 0, 63, 64}, s.causal = true, s.window_left = 100, s.page_size = 16;
      });
    }
    rows("softcap", [](CaseShape& s) { s.lengths = {900}, s.softcap = 3.0F; });
    rows("group 7", [](CaseShape& s) { s.q_heads = 14, s.kv_heads = 2, s.lengths = {404}, s.mask = MaskData::tree; });
    rows("group 16", [](CaseShape& s) { s.q_heads = 16, s.kv_heads = 1, s.batch = 70, s.lengths.assign(70, 90); });
  }

  // From 192 to 1040 outputs: two and four teams a block, one whole output for each, or parts, or several.
  for (const int batch : {24, 32, 40, 64, 130}) {
    char name[40];
    std::snprintf(name, sizeof(name), "%d sequences", batch);
    run(name, [&](CaseShape& s) { s.batch = batch, s.lengths.assign(batch, 270); });
    std::snprintf(name, sizeof(name), "%d ragged sequences", batch);
    const auto ragged = [&](CaseShape& s) {
      s.batch = batch, s.lengths.assign(batch, 0);
      for (int b = 0; b < batch; ++b) s.lengths[b] = b == 7 ? 1500 : b * 73 % 311;
    };
    run(name, ragged);
    run("with windows and sinks", [&](CaseShape& s) {
      ragged(s);
      s.sq = 2, s.causal = true, s.window_left = 150, s.sinks = true;
    });
  }

  run_eight_row_cases(run);
  run_mean_cases(run);
  run_window_cases(run);
  DecodeCase windows(with([](CaseShape& s) { s.batch = 4, s.lengths.assign(4, 4000), s.window_left = 127; }), 6);
  for (const std::int64_t n : {1, 31, 32, 127, 128, 129, 160, 3999}) {
    windows.set_lengths({n, n / 2, 4000, n});
    expect("window, replay at other lengths", windows);
  }

  // One plan for every length up to its capacity, lengths read on the device.
  for (const int batch : {1, 32}) {
    DecodeCase replay(with([&](CaseShape& s) { s.batch = batch, s.lengths.assign(batch, 4000); }), 5);
    for (const std::int64_t n : {1, 31, 33, 257, 3999}) {
      replay.set_lengths(std::vector<std::int64_t>(batch, n));
      expect("replay at another length", replay);
    }
  }
}

/// Which rows are for the verify kernel, so that the cases above are of the kernels that they are meant for.
void check_plans() {
  struct Plan {
    const char *k, *v;
    int rows, page_size;
    bool masked, verify;
    int head_dim = 128;
  };
  for (const Plan& plan : {Plan{"mxfp4", "mxfp4", 8, 64, false, false},
                           {"mxfp4", "mxfp4", 12, 64, false, true},
                           {"int4_g128", "int4_g128", 64, 64, false, false},
                           {"nvfp4", "fp8_e4m3", 64, 64, false, true},
                           {"nvfp4", "fp8_e4m3_static", 12, 16, false, true},
                           {"nvfp4", "fp8_e4m3", 64, 64, true, false},
                           {"nvfp4", "fp8_e4m3", 64, 24, false, false},
                           {"fp8_e4m3", "fp8_e4m3", 8, 64, false, false},
                           {"fp8_e4m3", "fp8_e4m3", 12, 64, true, true},
                           {"fp8_e4m3", "fp8_e4m3", 12, 64, false, true},
                           {"fp8_e4m3", "fp8_e4m3_static", 64, 16, false, true},
                           {"fp8_e4m3", "fp8_e4m3", 64, 24, false, false},
                           {"fp8_e4m3", "fp8_e4m3", 64, 64, true, true},
                           {"int8", "int8", 32, 64, false, true},
                           {"int8", "int8", 32, 64, true, false},
                           {"int8_g64", "int8_g64", 32, 64, false, false},
                           {"int8", "int8", 32, 64, false, true, 256},
                           {"int8", "int8", 8, 64, false, true, 256},
                           {"fp8_e4m3", "fp8_e4m3", 8, 16, false, true, 256},
                           {"fp8_e4m3", "fp8_e4m3", 8, 24, false, false, 256},
                           {"nvfp4", "fp8_e4m3", 4, 64, false, false, 256},
                           {"mxfp4", "mxfp4", 8, 64, false, false, 256},
                           {"int4_g128", "int4_g128", 32, 64, false, true, 256},
                           {"int4_g64", "int4_g32", 32, 64, false, true, 64},
                           {"mxfp4_f32", "mxfp4_f32_b64", 64, 16, false, true, 64},
                           {"bf16", "bf16", 64, 64, false, true},
                           {"bf16", "bf16", 64, 64, true, true},
                           {"bf16", "bf16", 4, 16, false, true, 256},
                           {"bf16", "bf16", 4, 16, true, false, 256},
                           {"bf16", "bf16", 4, 24, false, false, 256}}) {
    CaseShape s;
    s.k = plan.k, s.v = plan.v, s.sq = plan.rows / 4, s.page_size = plan.page_size, s.lengths = {64};
    s.head_dim = plan.head_dim;
    if (plan.masked) s.mask = MaskData::tree;
    if (DecodeCase(s).launch().verify == plan.verify) continue;
    ++failures;
    std::printf("FAILED %d rows of %d channels, %s, %s in pages of %d: %s kernel\n", plan.rows, plan.head_dim, plan.k,
                plan.v, plan.page_size, plan.verify ? "decode" : "verify");
  }
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&devices); e != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no CUDA device (%s)\n", e != cudaSuccess ? cudaGetErrorString(e) : "none found");
    return kExitSkipped;
  }
  cudaDeviceProp device{};
  mpfa::test::require(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  if (device.major != 9) {
    std::printf("SKIPPED: the kernel is for sm_90, device 0 is sm_%d%d\n", device.major, device.minor);
    return kExitSkipped;
  }
  check_plans();
  // Arguments: only formats whose K is named.
  for (const auto& [k, v] : {std::pair{"mxfp4", "mxfp4"},
                             {"nvfp4", "nvfp4"},
                             {"mxfp4_f32", "mxfp4_f32"},
                             {"mxfp4_f32_b64", "mxfp4_f32_b64"},
                             {"int4", "int4"},
                             {"int4_g32", "int4_g32"},
                             {"int4_g64", "int4_g64"},
                             {"int4_g128", "int4_g128"},
                             {"int8", "int8"},
                             {"int8_g32", "int8_g32"},
                             {"int8_g64", "int8_g64"},
                             {"int8_g128", "int8_g128"},
                             {"fp8_e4m3", "fp8_e4m3"},
                             {"fp8_e4m3_static", "fp8_e4m3_static"},
                             {"fp8_e4m3", "fp8_e4m3_static"},
                             {"bf16", "bf16"},
                             {"nvfp4", "fp8_e4m3"},
                             {"nvfp4", "fp8_e4m3_static"}}) {
    const bool wanted =
        argc < 2 || std::any_of(argv + 1, argv + argc, [&](const char* a) { return !std::strcmp(a, k); });
    for (const int head_dim : {128, 64, 256}) {
      if (wanted) check_formats(k, v, head_dim);
    }
  }
  std::printf(failures == 0 ? "all ok\n" : "%d FAILED\n", failures);
  return failures == 0 ? 0 : 1;
}
