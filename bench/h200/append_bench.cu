// Centring, quantising and writing bf16 tokens to pages on an H200, one JSON row a line. A perfect kernel reads K and V
// once and writes codes and scales: what counts is its share of the bandwidth of a plain copy of as many bytes.
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>

#include "bench/h200/timing.cuh"
#include "cuda/sm90/append/launch.h"

namespace {

using mpfa::bench::Times;
using mpfa::sm90::AppendFormat;
using mpfa::test::Device;

constexpr std::int32_t kHeads = 8, kDim = 128, kPage = 64, kQueryHeads = 32;

struct Format {
  const char* name;
  AppendFormat format;
  mpfa::ScaleRule rule;
  int bits, scale_bytes, group;  // group: channels that share a scale
};

using R = mpfa::ScaleRule;
constexpr Format kFormats[] = {
    {"bf16", AppendFormat::bf16, R::none, 16, 0, 128},
    {"fp8_e4m3", AppendFormat::e4m3, R::amax, 8, 4, 128},
    {"fp8_e4m3_static", AppendFormat::e4m3_static, R::fixed, 8, 0, 128},
    {"int8", AppendFormat::int8, R::amax, 8, 4, 128},
    {"int8_g32", AppendFormat::int8_group, R::amax, 8, 2, 32},
    {"int8_g64", AppendFormat::int8_group, R::amax, 8, 2, 64},
    {"int8_g128", AppendFormat::int8_group, R::amax, 8, 2, 128},
    {"int4", AppendFormat::int4, R::amax, 4, 4, 128},
    {"int4_g32", AppendFormat::int4_group, R::amax, 4, 2, 32},
    {"int4_g64", AppendFormat::int4_group, R::amax, 4, 2, 64},
    {"int4_g128", AppendFormat::int4_group, R::amax, 4, 2, 128},
    {"mxfp4", AppendFormat::e2m1_e8m0, R::least_error, 4, 1, 32},
    {"nvfp4", AppendFormat::e2m1_e4m3, R::amax, 4, 1, 16},
    {"nvfp4_4over6", AppendFormat::e2m1_e4m3_four_over_six, R::four_over_six, 4, 1, 16},
    {"mxfp4_f32", AppendFormat::e2m1_f32, R::amax, 4, 4, 32},
    {"e3m0_f32", AppendFormat::e3m0_f32, R::amax, 4, 4, 32},
};

std::int64_t scale_row(const Format& f) {
  return f.scale_bytes * (kDim / f.group);
}

__global__ void copy_bytes(const uint4* from, uint4* to, std::int64_t n) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    to[i] = from[i];
  }
}
/// As many bytes as a call moves, half of them read.
float copy_us(double bytes) {
  const auto n = static_cast<std::int64_t>(bytes / 32);
  Device<uint4> from(static_cast<std::size_t>(n)), to(static_cast<std::size_t>(n));
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((n + 255) / 256, 132 * 16));
  return mpfa::bench::measure(
             [&](cudaStream_t stream) { copy_bytes<<<blocks, 256, 0, stream>>>(from.get(), to.get(), n); })
      .median;
}

void row(const Format& k, const Format& v, std::int32_t tokens, bool means, bool rope) {
  const std::int64_t pages = tokens / kPage, rows = kHeads * kPage;
  const auto parts = [&](const Format& f) { return rows * (kDim * f.bits / 8 + scale_row(f)); };
  const std::int64_t page_bytes = parts(k) + parts(v);
  const std::int64_t elements = static_cast<std::int64_t>(tokens) * kHeads * kDim;
  const std::int64_t q_elements = static_cast<std::int64_t>(tokens) * kQueryHeads * kDim;
  Device<std::uint16_t> x(static_cast<std::size_t>(2 * elements)), q(rope ? static_cast<std::size_t>(q_elements) : 1);
  mpfa::test::detail::fill_queries<<<static_cast<unsigned>((2 * elements + 255) / 256), 256>>>(x.get(), true,
                                                                                               2 * elements, 1);
  Device<std::uint8_t> pool(static_cast<std::size_t>(pages * page_bytes));
  Device<float> mean(std::vector<float>(kHeads * kDim, 0.1F)), global(std::vector<float>(kHeads, 0.02F));
  Device<float> table(std::vector<float>(static_cast<std::size_t>(tokens) * kDim / 2, 0.6F));
  std::vector<std::int64_t> slots(tokens);
  std::iota(slots.begin(), slots.end(), 0);
  Device<std::int64_t> device_slots(slots);
  mpfa::sm90::AppendParams p{};
  std::int64_t at = 0;
  for (int i = 0; i < 2; ++i) {
    const Format& f = i == 0 ? k : v;
    mpfa::sm90::AppendOperand& o = p.operand[i];
    o.row.format = f.format, o.row.rule = f.rule, o.row.d = kDim, o.row.lanes = 8, o.row.lanes_shift = 3;
    o.row.parts = 1;
    o.row.group = f.group / 16;
    while (1 << o.row.group_shift < o.row.group) ++o.row.group_shift;
    o.row.mean = means ? mean.get() : nullptr;
    o.row.global = f.rule == R::fixed ? global.get() : nullptr;
    o.x = x.get() + i * elements, o.x_row = kHeads * kDim, o.x_head = kDim;
    o.data = pool.get() + at, o.scales = o.data + rows * kDim * f.bits / 8;
    o.data_page = o.scale_page = static_cast<std::int32_t>(page_bytes);
    o.data_row = kDim * f.bits / 8, o.data_head = kPage * o.data_row;
    o.scale_row = static_cast<std::int32_t>(scale_row(f)), o.scale_head = kPage * o.scale_row;
    at += parts(f);
  }
  p.operands = 2;
  p.slots = device_slots.get(), p.end_slot = tokens, p.page_div = mpfa::make_divisor(kPage);
  p.n = tokens, p.heads = kHeads, p.page_size = kPage;
  double bytes = 4.0 * static_cast<double>(elements) + static_cast<double>(pages * page_bytes);
  if (rope) {
    mpfa::sm90::AppendRope& r = p.rope;
    r.cos = r.sin = table.get(), r.cos_row = r.sin_row = kDim / 2, r.cos_step = r.sin_step = 1, r.rows = tokens;
    r.half = kDim / 2, r.dtype = r.sin_dtype = mpfa::DType::f32, r.table_vectors = r.k_wide = r.q_wide = true;
    r.positions = device_slots.get();
    r.q = q.get(), r.q_out = q.get(), r.q_dtype = r.q_out_dtype = mpfa::DType::bf16;
    r.q_row = r.q_out_row = kQueryHeads * kDim, r.q_head = r.q_out_head = kDim, r.q_step = r.q_out_step = 1;
    r.q_rows = tokens, r.q_heads = kQueryHeads;
    bytes += 4.0 * static_cast<double>(q_elements) + 4.0 * tokens * kDim;
  }
  const Times t = mpfa::bench::measure([&](cudaStream_t stream) {
    mpfa::test::require(mpfa::sm90::launch_append(mpfa::sm90::AppendInput::bf16, rope, p, stream), "launch_append");
  });
  const float copy = copy_us(bytes);
  std::string name = k.name;
  if (std::strcmp(k.name, v.name) != 0) name += std::string("+") + v.name;
  std::printf(
      "{\"op\": \"append\", \"tokens\": %d, \"hkv\": %d, \"d\": %d, \"format\": \"%s\", \"means\": %s, \"rope\": %s, "
      "\"median_us\": %.1f, \"min_us\": %.1f, \"max_us\": %.1f, \"tb_per_s\": %.2f, \"copy_us\": %.1f, "
      "\"share_of_copy\": %.3f}\n",
      tokens, kHeads, kDim, name.c_str(), means ? "true" : "false", rope ? "true" : "false", t.median, t.min, t.max,
      bytes / t.median / 1e6, copy, copy / t.median);
}

const Format& format(const char* name) {
  for (const Format& f : kFormats) {
    if (std::strcmp(f.name, name) == 0) return f;
  }
  std::exit(2);
}

}  // namespace

/// All rows, or those of 16k tokens of the formats that are named.
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) row(format(argv[i]), format(argv[i]), 16384, true, false);
  if (argc > 1) return 0;
  for (const int tokens : {64, 1024, 16384, 131072}) {
    for (const char* name : {"mxfp4", "nvfp4", "nvfp4_4over6"}) row(format(name), format(name), tokens, true, false);
  }
  for (const Format& f : kFormats) {
    for (const bool means : {false, true}) row(f, f, 16384, means, false);
  }
  row(format("nvfp4"), format("fp8_e4m3"), 16384, true, false);
  for (const char* name : {"bf16", "mxfp4", "nvfp4"}) row(format(name), format(name), 16384, false, true);
  return 0;
}
