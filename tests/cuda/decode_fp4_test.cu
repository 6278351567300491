// The FP4 decode kernel against attention in float64 over the same cache bytes. Needs an sm_90 card; without one it
// says SKIPPED and exits with 77.
#include <algorithm>
#include <cmath>

#include "tests/cuda/support/fp4_case.cuh"

namespace {

using mpfa::sm90::Fp4Scale;
using mpfa::test::Data;
using mpfa::test::Fp4Case;
using mpfa::test::Fp4Shape;

constexpr int kExitSkipped = 77;
constexpr double kOutTolerance = 1e-3;  // P has 11 bits; measured 1.5e-4 to 4e-4
constexpr double kLseTolerance = 2e-4;  // f32 sums of logits up to about 100

int failures = 0;

void expect(const char* name, const Fp4Case& c) {
  const Fp4Case::Errors e = c.check();
  const bool ok = e.out <= kOutTolerance && e.lse <= kLseTolerance * (c.shape().data == Data::k_bias ? 20 : 1);
  if (!ok) ++failures;
  std::printf("%s %-28s %s d%-3d out %.2e lse %.2e\n", ok ? "ok    " : "FAILED", name,
              c.shape().scale == Fp4Scale::e8m0_32 ? "mxfp4" : "nvfp4", c.shape().head_dim, e.out, e.lse);
}

void check_format(Fp4Scale scale, int head_dim) {
  Fp4Shape base;
  base.scale = scale, base.head_dim = head_dim;
  const auto with = [&](auto&& change) {
    Fp4Shape s = base;
    change(s);
    return s;
  };
  const auto run = [&](const char* name, auto&& change) { expect(name, Fp4Case(with(change), 3)); };

  run("one key", [](Fp4Shape& s) { s.lengths = {1}; });
  run("short", [](Fp4Shape& s) { s.lengths = {37}; });
  run("several splits", [](Fp4Shape& s) { s.lengths = {5000}; });
  run("ragged with an empty one", [](Fp4Shape& s) { s.batch = 5, s.lengths = {1000, 0, 63, 64, 2049}; });
  run("many sequences", [](Fp4Shape& s) {
    s.batch = 70, s.lengths.clear();
    for (int b = 0; b < 70; ++b) s.lengths.push_back(b * 37 % 301);
  });
  run("bias channel in K", [](Fp4Shape& s) { s.lengths = {700}, s.data = Data::k_bias; });
  run("sink token", [](Fp4Shape& s) { s.lengths = {3000}, s.data = Data::sink_token; });
  run("heavy tails", [](Fp4Shape& s) { s.lengths = {3000}, s.data = Data::heavy_tail; });
  run("f16 queries", [](Fp4Shape& s) { s.lengths = {900}, s.q_bf16 = false; });
  run("pages of 1", [](Fp4Shape& s) { s.lengths = {333}, s.page_size = 1; });
  run("pages of 24", [](Fp4Shape& s) { s.lengths = {777}, s.page_size = 24; });
  run("pages of 256", [](Fp4Shape& s) { s.lengths = {1111}, s.page_size = 256; });
  run("causal, 4 queries, group 4", [](Fp4Shape& s) { s.lengths = {901}, s.sq = 4, s.causal = true; });
  run("5 queries, more than keys", [](Fp4Shape& s) { s.lengths = {3}, s.sq = 5, s.causal = true; });
  run("16 queries, 64 rows", [](Fp4Shape& s) { s.lengths = {650}, s.sq = 16, s.causal = true; });
  run("group 1", [](Fp4Shape& s) { s.lengths = {600}, s.q_heads = 8; });
  run("group 8", [](Fp4Shape& s) { s.lengths = {600}, s.q_heads = 16, s.kv_heads = 2; });
  run("group 16", [](Fp4Shape& s) { s.lengths = {600}, s.q_heads = 16, s.kv_heads = 1; });
  run("group 7", [](Fp4Shape& s) { s.lengths = {600}, s.q_heads = 28, s.kv_heads = 4; });
  run("window", [](Fp4Shape& s) { s.lengths = {900}, s.sq = 2, s.causal = true, s.window_left = 100; });
  run("window to the right", [](Fp4Shape& s) { s.lengths = {900}, s.sq = 3, s.window_left = 65, s.window_right = 1; });
  run("softcap", [](Fp4Shape& s) { s.lengths = {900}, s.softcap = 3.0F; });
  run("sinks", [](Fp4Shape& s) { s.batch = 2, s.lengths = {900, 0}, s.sinks = true; });
  run("fixed split", [](Fp4Shape& s) { s.batch = 3, s.lengths = {5000, 100, 2048}, s.fixed_split_keys = 512; });

  // One plan for every length up to its capacity, lengths read on the device.
  Fp4Case replay(with([](Fp4Shape& s) { s.lengths = {4000}; }), 5);
  for (const std::int64_t n : {1, 31, 33, 257, 3999}) {
    replay.set_lengths({n});
    expect("replay at another length", replay);
  }
}

}  // namespace

int main(int argc, char**) {
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
  for (const Fp4Scale scale : {Fp4Scale::e8m0_32, Fp4Scale::e4m3_16}) {
    for (const int head_dim : {128, 64, 256}) {
      if (argc > 1 && head_dim != 128) continue;
      check_format(scale, head_dim);
    }
  }
  std::printf(failures == 0 ? "all ok\n" : "%d FAILED\n", failures);
  return failures == 0 ? 0 : 1;
}
