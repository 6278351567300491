// Decode on an H200: CUDA-graph replays with the second-level cache flushed before each, one JSON row a line on
// standard output. Arguments: none for the table, or triples "format batch kv", e.g. mxfp4 32 32768, or
// nvfp4+fp8_e4m3 where V has another format.
// collect.py joins the rows with the times of peers.py.
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "bench/h200/timing.cuh"

namespace {

using mpfa::bench::measure;
using mpfa::bench::Times;
using mpfa::test::CaseShape;
using mpfa::test::DecodeCase;
using mpfa::test::MaskData;

// Within a second after 17 GB were freed kernels take up to 1.13 times as long, perhaps because the driver clears them.
constexpr double kClearedPerSecond = 1.7e10, kSeen = 3e9;
constexpr double kReadBandwidth = 4.54e12;  // measured on an H200, bytes/s

struct Layout {
  int q_heads, kv_heads = 8, head_dim = 128, page = 64, window = 0;  // keys that a row sees, 0: all
  bool means = false;                                                // of K and V
};

/// mask: null for causal rows, or the dtype of a tree mask. Gives the bytes of the cache.
double row(const char* format, int batch, int kv, Layout layout, int sq, const char* mask = nullptr) {
  CaseShape s;
  const std::string formats = format, k = formats.substr(0, formats.find('+')),
                    v = formats.substr(formats.find('+') + 1);
  s.k = k.c_str(), s.v = v.c_str();
  s.batch = batch, s.lengths.assign(batch, kv), s.sq = sq, s.causal = sq > 1 && mask == nullptr;
  s.q_heads = layout.q_heads, s.kv_heads = layout.kv_heads, s.head_dim = layout.head_dim, s.page_size = layout.page;
  if (layout.window > 0) s.window_left = layout.window - 1, s.forgets = true;
  s.means = layout.means;
  if (mask != nullptr) s.mask = MaskData::tree, s.additive = std::strcmp(mask, "f32") == 0;
  const DecodeCase c(s);
  const Times t = measure([&](cudaStream_t stream) { c.run(stream, 1); });
  const double rate = c.cache_bytes() / t.median * 1e6;
  std::printf(
      "{\"b\": %d, \"kv\": %d, \"q\": %d, \"hq\": %d, \"hkv\": %d, \"d\": %d, \"page\": %d, \"k_format\": \"%s\", "
      "\"v_format\": \"%s\", "
      "\"median_us\": %.1f, \"min_us\": %.1f, \"max_us\": %.1f, \"tb_per_s\": %.2f, \"share_of_read_bandwidth\": %.3f",
      batch, kv, sq, s.q_heads, s.kv_heads, s.head_dim, s.page_size, s.k, s.v, t.median, t.min, t.max, rate / 1e12,
      rate / kReadBandwidth);
  if (layout.window > 0) std::printf(", \"window\": %d", layout.window);
  if (layout.means) std::printf(", \"means\": true");
  if (mask != nullptr) std::printf(", \"mask\": \"%s\"", mask);
  std::printf("}\n");
  std::fflush(stdout);
  return c.cache_bytes();
}

void timed_row(const char* format, int batch, int kv, Layout layout, int sq, const char* mask = nullptr) {
  const double freed = row(format, batch, kv, layout, sq, mask);
  if (freed > kSeen) std::this_thread::sleep_for(std::chrono::duration<double>(freed / kClearedPerSecond));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 3) {
    for (int i = 1; i + 2 < argc; i += 3) timed_row(argv[i], std::atoi(argv[i + 1]), std::atoi(argv[i + 2]), {32}, 1);
    return 0;
  }
  for (const char* format : {"mxfp4", "nvfp4", "int4_g64", "mxfp4_f32", "nvfp4+fp8_e4m3", "fp8_e4m3", "int8", "bf16"}) {
    for (const auto& [b, kv] : {std::pair{1, 4096},
                                {1, 16384},
                                {1, 32768},
                                {1, 131072},
                                {8, 4096},
                                {8, 16384},
                                {8, 32768},
                                {8, 131072},
                                {8, 8192},
                                {8, 524288},  // time per byte from 8k to 512k
                                {32, 4096},
                                {32, 8192},
                                {32, 16384},
                                {32, 32768},
                                {32, 131072},
                                {64, 8192},
                                {64, 16384},
                                {64, 32768}}) {
      timed_row(format, b, kv, {32}, 1);
    }
    for (const int q_heads : {32, 64, 128}) {
      for (const int sq : {1, 2, 4, 8}) timed_row(format, 32, 16384, {q_heads}, sq);
    }
    // An eighth of 64/8 heads, heads of 64 channels as of gpt-oss, of 256 as of Qwen3-Next.
    for (const Layout layout : {Layout{8, 1}, Layout{64, 8, 64}, Layout{16, 2, 256}}) {
      for (const int sq : {1, 4}) timed_row(format, 1, 16384, layout, sq);
      timed_row(format, 8, 16384, layout, 1);
      for (const int sq : {1, 2, 4, 8}) timed_row(format, 32, 16384, layout, sq);
    }
    for (const auto& [b, kv] : {std::pair{1, 4096}, {8, 16384}, {32, 16384}}) {
      timed_row(format, b, kv, {32, 8, 128, 16}, 1);
    }
    // As recipes with centre=mean have them.
    for (const auto& [b, kv] : {std::pair{1, 4096}, {1, 32768}, {8, 16384}, {32, 4096}, {32, 16384}}) {
      timed_row(format, b, kv, {32, 8, 128, 64, 0, true}, 1);
    }
    timed_row(format, 1, 16384, {64, 8, 64, 64, 128, true}, 1);
    // Windows as of gpt-oss, Gemma 3 and Mistral.
    for (const Layout layout :
         {Layout{64, 8, 64, 64, 128}, Layout{16, 8, 256, 64, 1024}, Layout{32, 8, 128, 64, 4096}}) {
      for (const int b : {1, 8, 32}) timed_row(format, b, 16384, layout, 1);
    }
    // 128 and 256 rows of a KV head, and trees of 16, 32 and 64 rows.
    for (const int q_heads : {64, 128}) timed_row(format, 8, 16384, {q_heads}, 16);
    for (const int sq : {4, 8, 16}) {
      for (const char* mask : {static_cast<const char*>(nullptr), "u8", "f32"}) {
        timed_row(format, 8, 16384, {32}, sq, mask);
      }
    }
  }
  return 0;
}
