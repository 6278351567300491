// Centring, quantising and writing bf16 tokens to FP4 pages on an H200, one JSON row a line. A perfect kernel reads K
// and V once and writes codes and scales: its share of the copy bandwidth is what counts.
#include <cstdio>
#include <numeric>
#include <random>

#include "bench/h200/timing.cuh"
#include "cuda/sm90/append/fp4/launch.h"

namespace {

using mpfa::bench::Times;
using mpfa::test::Device;

constexpr double kCopyBandwidth = 4.25e12;  // measured on an H200, bytes/s, reads plus writes
constexpr std::int32_t kHeads = 8, kDim = 128, kPage = 64;

void row(const char* name, mpfa::ScaleType scale, mpfa::ScaleRule rule, std::int32_t tokens) {
  const std::int32_t block = scale == mpfa::ScaleType::e8m0 ? 32 : 16, blocks = kDim / block;
  const std::int64_t pages = tokens / kPage, rows = kHeads * kPage;
  const std::int64_t page_bytes = 2 * rows * (kDim / 2 + blocks);
  Device<std::uint16_t> x(static_cast<std::size_t>(2) * tokens * kHeads * kDim);
  mpfa::test::detail::fill_queries<<<(2 * tokens * kHeads * kDim + 255) / 256, 256>>>(
      x.get(), true, static_cast<std::int64_t>(2) * tokens * kHeads * kDim, 1);
  Device<std::uint8_t> pool(static_cast<std::size_t>(pages * page_bytes));
  Device<float> mean(std::vector<float>(kHeads * kDim, 0.1F));
  std::vector<std::int64_t> slots(tokens);
  std::iota(slots.begin(), slots.end(), 0);
  Device<std::int64_t> device_slots(slots);
  mpfa::sm90::AppendParams p{};
  for (int i = 0; i < 2; ++i) {
    mpfa::sm90::AppendOperand& o = p.operand[i];
    o.x = x.get() + static_cast<std::int64_t>(i) * tokens * kHeads * kDim, o.mean = mean.get();
    o.x_row = kHeads * kDim, o.x_head = kDim;
    o.data = pool.get() + i * rows * kDim / 2, o.scales = pool.get() + rows * kDim + i * rows * blocks;
    o.data_page = o.scale_page = page_bytes;
    o.data_head = kPage * kDim / 2, o.data_row = kDim / 2;
    o.scale_head = kPage * blocks, o.scale_row = blocks;
    o.blocks = blocks, o.rule = rule;
  }
  p.slots = device_slots.get(), p.end_slot = pages * kPage, p.page_div = mpfa::make_divisor(kPage);
  p.n = tokens, p.heads = kHeads, p.page_size = kPage;
  const Times t = mpfa::bench::measure([&](cudaStream_t stream) {
    mpfa::test::require(mpfa::sm90::launch_append(mpfa::sm90::AppendInput::bf16, scale, p, stream), "launch_append");
  });
  const double bytes = 4.0 * tokens * kHeads * kDim + static_cast<double>(pages * page_bytes);
  std::printf(
      "{\"op\": \"append\", \"tokens\": %d, \"hkv\": %d, \"d\": %d, \"format\": \"%s\", \"median_us\": %.1f, "
      "\"min_us\": %.1f, \"max_us\": %.1f, \"tb_per_s\": %.2f, \"share_of_copy_bandwidth\": %.3f}\n",
      tokens, kHeads, kDim, name, t.median, t.min, t.max, bytes / t.median / 1e6,
      bytes / t.median * 1e6 / kCopyBandwidth);
}

}  // namespace

int main() {
  using mpfa::ScaleRule;
  using mpfa::ScaleType;
  for (const int tokens : {64, 1024, 16384, 131072}) {
    row("mxfp4", ScaleType::e8m0, ScaleRule::least_error, tokens);
    row("nvfp4", ScaleType::e4m3, ScaleRule::amax, tokens);
    row("nvfp4_4over6", ScaleType::e4m3, ScaleRule::four_over_six, tokens);
  }
  return 0;
}
