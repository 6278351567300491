// Random programs against the C ABI: caches, appends, edits, pages of the caller and attends of any shape, stride, mask
// and hostile number. A call is refused with a message, or its result agrees with the reference over the same cache.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "mpfa/reference.hpp"
#include "tests/fuzz/capi_pages.hpp"
#include "tests/fuzz/capi_shift.hpp"
#include "tests/fuzz/capi_slots.hpp"
#include "tests/fuzz/capi_tokens.hpp"
#include "tests/fuzz/capi_view.hpp"

namespace {

using mpfa::fuzz::Checked;
using mpfa::fuzz::Input;
using mpfa::fuzz::number;
using mpfa::fuzz::require;
using mpfa::fuzz::tolerance;
using mpfa::fuzz::World;

constexpr std::int64_t kMaxRows = 24, kMaxKeys = 256;

mpfa_problem problem_of(Input& in, const World& w) {
  mpfa_problem p;
  mpfa_problem_init(&p, sizeof p);
  p.recipe = w.recipe;
  p.batch = w.config.batch;
  p.max_q = in.size(1, kMaxRows);
  p.total_q = in.rarely(8) ? in.size(1, 3 * kMaxRows) : 0;
  p.max_kv = in.rarely(8) ? in.size(0, kMaxKeys) : kMaxKeys;
  p.q_heads = in.rarely(256) ? in.size(1, 9) : w.config.q_heads;
  p.kv_heads = w.config.kv_heads;
  p.head_dim = in.rarely(256) ? in.size(1, 80) : w.config.head_dim;
  p.head_dim_v = w.config.head_dim_v;
  p.page_size = w.config.page_size;
  constexpr float kScales[] = {0.0F, 0.2F, 1.0F, -1.0F, NAN};
  p.softmax_scale = in.rarely(4) ? in.pick(kScales) : 0.0F;
  constexpr float kCaps[] = {0.0F, 20.0F, 0.5F, -2.0F, INFINITY};
  p.softcap = in.rarely(4) ? in.pick(kCaps) : 0.0F;
  p.window_left = in.coin() ? -1 : in.size(0, 60);
  p.window_right = in.coin() ? -1 : in.size(0, 20);
  p.causal = in.coin() ? 1 : 0;
  p.has_sinks = in.rarely(4) ? 1 : 0;
  p.has_alibi = in.rarely(4) ? 1 : 0;
  p.mask = !in.rarely(4) ? MPFA_MASK_NONE : static_cast<mpfa_mask_kind>(in.between(0, 3));
  p.threads = static_cast<std::int32_t>(in.between(1, 3));
  return p;
}

/// What the pointers of a call point at.
struct Buffers {
  std::vector<float> q, out, lse, sinks, slopes, bias;
  std::vector<std::uint8_t> keep;
  std::vector<std::int64_t> cu;
};

constexpr float kMark = 77.0F;

mpfa_attend_args args_of(Input& in, World& w, const mpfa_problem& p, Buffers& b, bool& written) {
  mpfa_attend_args a;
  mpfa_attend_args_init(&a, sizeof a);
  const bool ragged = in.rarely(4);
  const std::int64_t most = in.rarely(8) ? kMaxRows : std::min(p.max_q, kMaxRows);
  std::int64_t rows = in.between(0, most);
  if (ragged) {
    b.cu.push_back(in.rarely(256) ? 1 : 0);
    for (std::int64_t i = 0; i < p.batch; ++i)
      b.cu.push_back(b.cu.back() + in.between(0, std::min<std::int64_t>(most, 12)));
    rows = b.cu.back() + (in.rarely(256) ? 1 : 0);
    a.cu_seqlens_q = b.cu.data();
  }
  const std::int64_t sequences = ragged ? 1 : p.batch, pad = in.between(0, 3);
  const std::int64_t n = sequences * rows;
  const auto strided = [&](std::vector<float>& data, std::int64_t d, float fill) {
    const std::int64_t row = p.q_heads * (d + pad);
    data.assign(static_cast<std::size_t>(n * row), fill);
    mpfa_tensor t = mpfa_contiguous(data.data(), MPFA_F32, sequences, rows, p.q_heads, d);
    t.stride[0] = rows * row;
    t.stride[1] = row;
    t.stride[2] = d + pad;
    return t;
  };
  a.q = strided(b.q, p.head_dim, 0.0F);
  for (std::size_t i = 0; i < b.q.size(); ++i) b.q[i] = number(5, i);
  a.out = strided(b.out, p.head_dim_v, kMark);
  written = !in.rarely(16);
  if (!written && n > 1) a.out.stride[1] = 0;  // rows overlap: refused
  b.lse.assign(static_cast<std::size_t>(n * p.q_heads), kMark);
  a.lse = in.coin() ? b.lse.data() : nullptr;
  for (std::int64_t h = 0; h < p.q_heads; ++h) {
    b.sinks.push_back(static_cast<float>(h % 3) - 1.0F);
    b.slopes.push_back(0.25F);
  }
  a.sinks = (p.has_sinks == 1) == (!in.rarely(32)) ? b.sinks.data() : nullptr;
  a.alibi_slopes = p.has_alibi == 1 ? b.slopes.data() : nullptr;
  if (p.mask != MPFA_MASK_NONE) {
    const std::int64_t keys = in.rarely(8) ? in.between(1, kMaxKeys) : kMaxKeys;
    const std::int64_t heads = in.coin() ? 1 : p.q_heads;
    const auto size = static_cast<std::size_t>(p.batch * heads * kMaxRows * keys);
    for (std::size_t i = 0; i < size; ++i) {
      const bool masked = i % 3 == 1 || i / static_cast<std::size_t>(keys) % 5 == 4;
      b.keep.push_back(masked ? 0 : 1);
      b.bias.push_back(masked ? -INFINITY : number(9, i));
    }
    const bool boolean = p.mask == MPFA_MASK_BOOLEAN;
    a.mask = mpfa_contiguous(boolean ? static_cast<void*>(b.keep.data()) : b.bias.data(), boolean ? MPFA_U8 : MPFA_F32,
                             p.batch, heads, kMaxRows, keys);
  }
  a.cache = w.cache;
  a.executor = w.any_executor(in);
  return a;
}

void compare(const mpfa_problem& problem, const mpfa_attend_args& a, const World& w) {
  const mpfa::AttentionProblem p = mpfa::capi::to_problem("fuzz", &problem).value();
  mpfa::AttentionTensors t;
  t.q = mpfa::capi::to_view("fuzz", "q", a.q).value();
  t.mask = mpfa::capi::to_view("fuzz", "mask", a.mask).value();
  t.cu_seqlens_q = a.cu_seqlens_q;
  t.sinks = a.sinks;
  t.alibi_slopes = a.alibi_slopes;
  t.cache = w.cache->cache.view();
  std::vector<double> want, lse;
  require(mpfa::reference::attend(p, t, mpfa::reference::Precision::f64, want, lse).ok(), "the reference refuses");
  const auto* out = static_cast<const float*>(a.out.data);
  for (std::int64_t i = 0, at = 0; i < a.q.shape[0]; ++i) {
    for (std::int64_t r = 0; r < a.q.shape[1]; ++r) {
      for (std::int64_t h = 0; h < p.q_heads; ++h) {
        const float* row = out + i * a.out.stride[0] + r * a.out.stride[1] + h * a.out.stride[2];
        for (std::int64_t c = 0; c < p.head_dim_v; ++c, ++at) {
          // Values are at most 3 before quantisation.
          require(std::abs(row[c] - want[at]) <= 4 * tolerance(p.recipe), "kernel and reference differ");
        }
        for (std::int64_t c = p.head_dim_v; c < a.out.stride[2]; ++c) require(row[c] == kMark, "padding was written");
        if (a.lse == nullptr) continue;
        const float got = a.lse[(i * p.q_heads + h) * a.q.shape[1] + r];
        const double expected = lse[(i * a.q.shape[1] + r) * p.q_heads + h];
        require(got == expected || std::abs(got - expected) <= 10 * tolerance(p.recipe), "the LSE differs");
      }
    }
  }
}

void attend(Input& in, World& w) {
  const mpfa_problem p = problem_of(in, w);
  Checked e;
  mpfa_plan* plan = nullptr;
  const bool planned = e.ok(mpfa_plan_create(&p, MPFA_CPU, &plan, e));
  require(planned == (plan != nullptr), "a plan without success, or the reverse");
  const std::size_t bytes = mpfa_plan_workspace_bytes(plan);
  // A refused problem has no sizes to make tensors of; a plan for terabytes has no memory here.
  if (planned && p.q_heads <= 64 && bytes < (std::size_t{1} << 26)) {
    Buffers b;
    bool written = true;
    mpfa_attend_args a = args_of(in, w, p, b, written);
    mpfa::fuzz::CallerView view;
    const bool faithful = in.coin() || view.read_from(in, w, a);
    const std::vector<float> q = b.q;
    std::vector<std::byte> scratch(bytes + 64, std::byte{0xFF});
    const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64;
    Checked called;
    const bool ok =
        called.ok(mpfa_attend(plan, &a, scratch.data() + skip, bytes - (in.rarely(256) && bytes > 0 ? 1 : 0), called));
    require(q == b.q, "attend changed q");
    if (!ok) {
      for (const float x : b.out) require(x == kMark, "a refused call wrote to out");
      for (const float x : b.lse) require(x == kMark, "a refused call wrote to lse");
    } else if (!w.wild && faithful) {
      compare(p, a, w);
    }
  }
  mpfa_plan_destroy(plan);
}

/// What needs no cache that lasts.
void use_pages(Input& in) {
  switch (in.bits(1) % 6) {
    case 0: mpfa::fuzz::describe(in); break;
    case 1: mpfa::fuzz::join(in); break;
    case 2: mpfa::fuzz::copy(in); break;
    case 3: mpfa::fuzz::convert(in); break;
    case 4: mpfa::fuzz::write_pages(in); break;
    default: mpfa::fuzz::page_table(in);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  if (in.rarely(4)) {
    for (int steps = 0; in.left() > 0 && steps < 6; ++steps) use_pages(in);
    return 0;
  }
  World w;
  if (!w.create(in)) return 0;
  for (int steps = 0; in.left() > 0 && steps < 12; ++steps) {
    switch (in.bits(1) % 8) {
      case 0:
      case 1: mpfa::fuzz::append(in, w); break;
      case 2: w.edit(in); break;
      case 3: mpfa::fuzz::write_slots(in, w); break;
      case 4: mpfa::fuzz::shift(in, w); break;
      case 5: mpfa::fuzz::remove(in, w); break;
      default: attend(in, w);
    }
  }
  return 0;
}
