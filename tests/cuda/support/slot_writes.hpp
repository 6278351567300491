// The same write on the host and on the device, and the first byte that differs.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "formats/elements.hpp"
#include "tests/cuda/support/device_memory.hpp"
#include "tests/support/problems.hpp"

namespace mpfa::test {

/// Bits of a value in `dtype`, NaN and Inf kept.
inline std::vector<std::byte> narrow(const std::vector<float>& x, DType dtype) {
  std::vector<std::byte> bytes(x.size() * dtype_bytes(dtype));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint32_t bits = dtype == DType::f32    ? formats::float_bits(x[i])
                               : dtype == DType::bf16 ? formats::Bf16::encode(x[i]).bits
                                                      : formats::F16::encode(x[i]).bits;
    std::memcpy(bytes.data() + i * dtype_bytes(dtype), &bits, dtype_bytes(dtype));
  }
  return bytes;
}

/// Gaussian and heavy-tailed rows with what a quantiser may stumble over: Inf, NaN, huge, tiny, subnormal, equal and
/// zero values, signed zeros, values halfway between two codes.
inline std::vector<float> hard_values(std::size_t n, unsigned seed, bool finite = false) {
  std::mt19937 random(seed);
  std::student_t_distribution<float> tail(3.0F);
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = tail(random);
    const std::size_t kind = i / 512 % 16;
    if (kind == 3) x[i] *= std::exp2(static_cast<float>(i % 250) - 125.0F);
    if (kind == 5) x[i] *= 1e-40F;
    if (kind == 6) x[i] = i % 3 == 0 ? -0.0F : 0.0F;
    if (kind == 7) x[i] = static_cast<float>(static_cast<int>(random() % 49) - 24) * 0.25F;
    if (kind == 9) x[i] = static_cast<float>(static_cast<int>(random() % 513) - 256) * 0.5F;
    if (kind == 10) x[i] *= 3e37F;
    if (kind == 11) x[i] *= 2e4F;
    if (kind == 12) x[i] *= 1e-6F;
    if (kind == 13) x[i] *= 6e-9F;
  }
  for (std::size_t i = finite ? n : 100; i < n; i += 4999) x[i] = i % 2 == 0 ? INFINITY : NAN;
  return x;
}

/// Blocks of 16 under which nvfp4_4over6 finds both scales nearly as good: one element of each is put where the errors
/// are equal, and some last bits beside it.
inline std::vector<float> near_ties(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (std::size_t begin = 0; begin + 16 <= n; begin += 16) {
    float* const block = x.data() + begin;
    float amax = 0.0F;
    for (int i = 0; i < 16; ++i) block[i] = normal(random), amax = std::max(amax, std::fabs(block[i]));
    const auto scale = [&](float target) { return formats::E4M3::decode(formats::E4M3::encode(amax / target).bits); };
    const float six = scale(6.0F), four = scale(4.0F);
    const auto point = [](float v, float s) {
      return double{s} * formats::E2M1::decode(formats::E2M1::encode(std::fabs(v) / s).bits);
    };
    double more = 0.0;
    for (int i = 0; i < 16; ++i) {
      more += std::pow(std::fabs(block[i]) - point(block[i], four), 2) -
              std::pow(std::fabs(block[i]) - point(block[i], six), 2);
    }
    for (int i = 0; i < 16; ++i) {
      const double p4 = point(block[i], four), p6 = point(block[i], six),
                   moved = std::fabs(block[i]) + more / (2 * (p4 - p6));
      const auto value = static_cast<float>(moved);
      if (p4 == p6 || moved <= 0.0 || value >= amax || point(value, four) != p4 || point(value, six) != p6) continue;
      block[i] = value;
      for (int steps = static_cast<int>(random() % 9) - 4; steps != 0; steps += steps > 0 ? -1 : 1) {
        block[i] = std::nextafter(block[i], steps > 0 ? amax : 0.0F);
      }
      break;
    }
  }
  return x;
}

struct WriteCase {
  std::string k = "mxfp4", v = "mxfp4";
  std::int64_t tokens = 300, heads = 2, d = 128, page = 16, pages = 40;
  DType dtype = DType::f32;
  bool means = true, globals = true, strided = false, finite = false, ties = false;
  std::int64_t rope_half = 0, rope_begin = 0;  // half 0: no RoPE
  RopeStyle style = RopeStyle::half;
  DType table = DType::f32, q_dtype = DType::bf16, q_out = DType::f32;
  std::int64_t q_heads = 6;
};

/// Empty, or what differs.
inline std::string write_both(const WriteCase& c, unsigned seed = 1) {
  CacheConfig config;
  const bool k_static = c.k.ends_with("static"), v_static = c.v.ends_with("static");
  config.recipe = recipe(fmt::format("k={},v={},p=bf16,centre={},v_mean={}", c.k, c.v, c.means ? "static" : "none",
                                     c.means ? "static" : "none"));
  config.num_pages = c.pages, config.page_size = c.page, config.q_heads = c.q_heads, config.kv_heads = c.heads;
  config.head_dim = config.head_dim_v = c.d;
  if (c.means) {
    config.k_mean = gaussian({1, 1, c.heads, c.d}, 1).data;
    config.v_mean = gaussian({1, 1, c.heads, c.d}, 2).data;
  }
  for (std::int64_t h = 0; h < c.heads; ++h) {
    if (c.globals || k_static) config.k_global.push_back(h % 2 == 0 ? 0.37F : 2.9F);
    if (c.globals || v_static) config.v_global.push_back(h % 2 == 0 ? 1.0F : 0.01F);
  }
  Result<PagedCache> made = PagedCache::create(config);
  if (!made.ok()) return "create: " + made.status().message();
  PagedCache cache = std::move(made).value();
  const auto bytes = static_cast<std::size_t>(cache.storage_bytes());
  std::memset(cache.storage(), 0xA5, bytes);

  const std::int64_t pad = c.strided ? 16 : 0, row = c.heads * (c.d + pad) + 2 * pad;
  Memory memory;
  const auto tensor = [&](const void* data) {
    return TensorView{data, c.dtype, {1, c.tokens, c.heads, c.d}, {0, row, c.d + pad, 1}};
  };
  const auto n = static_cast<std::size_t>(c.tokens * row);
  const auto values = [&](unsigned s) { return c.ties ? near_ties(n, s) : hard_values(n, s, c.finite); };
  const std::vector<std::byte> k = narrow(values(seed), c.dtype), v = narrow(values(seed + 1), c.dtype);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(c.tokens)), positions(slots.size());
  const std::int64_t all = c.pages * c.page;
  for (std::int64_t i = 0; i < c.tokens; ++i) {
    slots[i] = i % 7 == 3 ? -1 : (i * 211) % all;
    positions[i] = (i * 37) % 64;
  }

  std::byte* const pool = memory.copy(cache.storage(), bytes);
  const std::byte* const host = cache.storage();
  const CacheView view = cache.view();
  SlotWrite w;
  w.k = tensor(memory.copy(k)), w.v = tensor(memory.copy(v));
  w.slot_mapping = memory.copy(slots);
  if (c.means) w.k_mean = memory.copy(config.k_mean), w.v_mean = memory.copy(config.v_mean);
  const auto pages = [&](const BlockFormat& f, const OperandPages& o, const std::vector<float>& global) {
    const auto size = static_cast<std::int64_t>(bytes);
    const MutablePagePart data{pool, size, o.data - host, {o.data_page_stride, o.data_head_stride, o.data_row_stride}};
    MutablePagePart scales;
    if (f.scale != ScaleType::none) {
      scales = {pool, size, o.scales - host, {o.scale_page_stride, o.scale_head_stride, o.scale_row_stride}};
    }
    const float* on_device = global.empty() ? nullptr : memory.copy(global);
    return make_pages({f, PagesLayout::linear, c.pages, c.page, c.heads, c.d}, data, scales, on_device).value();
  };
  w.k_pages = pages(config.recipe.k, view.k, config.k_global);
  w.v_pages = pages(config.recipe.v, view.v, config.v_global);
  w.counters = memory.copy(std::vector<unsigned long long>(3));

  Rope host_rope, rope;
  const std::size_t q_size = static_cast<std::size_t>(c.tokens * c.q_heads * c.d);
  const std::array<std::int64_t, 4> q_shape{1, c.tokens, c.q_heads, c.d};
  const std::vector<std::byte> q = narrow(hard_values(q_size, seed + 2), c.q_dtype);
  std::vector<std::byte> q_out(q_size * dtype_bytes(c.q_out), std::byte{0x5A});
  std::byte* const device_q_out = memory.copy(q_out);
  std::vector<std::byte> cos, sin;
  if (c.rope_half > 0) {
    std::vector<float> a(static_cast<std::size_t>(64 * c.rope_half)), b(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double angle = static_cast<double>(i / c.rope_half) *
                           std::pow(10000.0, -static_cast<double>(i % c.rope_half) / static_cast<double>(c.rope_half));
      a[i] = static_cast<float>(std::cos(angle)), b[i] = static_cast<float>(std::sin(angle));
    }
    cos = narrow(a, c.table), sin = narrow(b, c.table);
    const auto table = [&](const void* p) {
      return TensorView{p, c.table, {64, c.rope_half, 1, 1}, {c.rope_half, 1, 0, 0}};
    };
    host_rope = {c.style,
                 c.rope_begin,
                 table(cos.data()),
                 table(sin.data()),
                 positions.data(),
                 contiguous(static_cast<const void*>(q.data()), c.q_dtype, q_shape),
                 contiguous(static_cast<void*>(q_out.data()), c.q_out, q_shape),
                 nullptr};
    rope = {c.style,
            c.rope_begin,
            table(memory.copy(cos)),
            table(memory.copy(sin)),
            memory.copy(positions),
            contiguous(static_cast<const void*>(memory.copy(q)), c.q_dtype, q_shape),
            contiguous(static_cast<void*>(device_q_out), c.q_out, q_shape),
            nullptr};
    w.rope = &rope;
  }
  if (const Status s = write_slots(w, Device::sm90); !s.ok()) return s.message();
  if (const Status s =
          cache.write_slots(tensor(k.data()), tensor(v.data()), slots, c.rope_half > 0 ? &host_rope : nullptr);
      !s.ok()) {
    return "host: " + s.message();
  }
  const std::vector<std::byte> written = to_host(pool, bytes);
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (written[i] == cache.storage()[i]) continue;
    if (wrong++ == 0) first = i;
  }
  std::string text;
  if (wrong > 0) {
    text = fmt::format("{} of {} bytes differ, the first at {} ({} of its page): {:#04x}, the host's {:#04x}; ", wrong,
                       bytes, first, first % (bytes / static_cast<std::size_t>(c.pages)),
                       static_cast<int>(written[first]), static_cast<int>(cache.storage()[first]));
  }
  const std::vector<unsigned long long> met = to_host(w.counters, 3);
  const QuantiseCounters& h = cache.counters();
  const std::array<std::int64_t, 3> expected{h.nonfinite_blocks, h.saturated_elements, h.flushed_blocks};
  for (std::size_t i = 0; i < 3; ++i) {
    if (static_cast<std::int64_t>(met[i]) != expected[i])
      text += fmt::format("counter {} is {}, the host's {}; ", i, met[i], expected[i]);
  }
  if (c.rope_half == 0) return text;
  const std::vector<std::byte> turned = to_host(device_q_out, q_out.size());
  const std::size_t size = dtype_bytes(c.q_out);
  wrong = 0;
  for (std::size_t i = 0; i < q_size; ++i) {
    std::uint32_t a = 0, b = 0;
    std::memcpy(&a, turned.data() + i * size, size), std::memcpy(&b, q_out.data() + i * size, size);
    const auto is_nan = [&](std::uint32_t x) {
      const std::uint32_t wide = c.q_out == DType::bf16 ? x << 16 : x;
      return c.q_out == DType::f16 ? (x & 0x7FFFU) > 0x7C00U : (wide & 0x7FFFFFFFU) > 0x7F800000U;
    };
    if (a == b || (is_nan(a) && is_nan(b))) continue;
    if (wrong++ == 0)
      text += fmt::format("q_out[{}] (channel {}) is {:#x}, the host's {:#x}; ", i, i % static_cast<std::size_t>(c.d),
                          a, b);
  }
  return text;
}

}  // namespace mpfa::test
