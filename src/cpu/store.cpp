#include "cpu/store.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/logit.hpp"
#include "attention/sequences.hpp"
#include "cache/convert.hpp"
#include "cache/hadamard.hpp"

namespace mpfa::cpu {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

void store_row(const MutableTensorView& out, std::int64_t offset, std::int64_t n, const float* x) {
  const std::int64_t step = out.stride[3];
  switch (out.dtype) {
    case DType::bf16:
      for (std::int64_t i = 0; i < n; ++i)
        static_cast<std::uint16_t*>(out.data)[offset + i * step] = float_to_bf16(x[i]);
      return;
    case DType::f16:
      for (std::int64_t i = 0; i < n; ++i) {
        static_cast<std::uint16_t*>(out.data)[offset + i * step] =
            static_cast<std::uint16_t>(formats::F16::encode(x[i]).bits);
      }
      return;
    default:
      if (step == 1) {
        std::copy_n(x, n, static_cast<float*>(out.data) + offset);
      } else {
        for (std::int64_t i = 0; i < n; ++i) static_cast<float*>(out.data)[offset + i * step] = x[i];
      }
  }
}

}  // namespace

void store_rows(const Task& task, OnlineState& state) {
  const AttentionProblem& p = *task.problem;
  const AttentionTensors& t = *task.tensors;
  const std::int64_t dv = p.head_dim_v;
  const SequenceView seq = t.cache.sequences == nullptr ? SequenceView{} : t.cache.sequences[task.sequence];
  for (std::int64_t r = 0; r < task.count; ++r) {
    const Row& row = task.rows[r];
    float* o = state.o + r * padded(dv);
    float lse = kNone;
    if (state.m[r] == kNone && !std::isnan(state.l[r])) {  // without keys; scores that are all NaN have no maximum
      std::fill_n(o, dv, 0.0F);
      if (p.sinks) lse = t.sinks[row.head];
    } else {
      // With a softcap the logits are the true ones; otherwise centring took `shift` from the whole row.
      const float shift = p.softcap > 0.0F ? 0.0F : row.shift;
      float top = state.m[r];
      float l = state.l[r];
      float weight = 1.0F;
      float mass = 1.0F;  // what the keys weigh; a sink takes the rest, and no share of the mean of V
      if (p.sinks) {
        const float sink = (t.sinks[row.head] - shift) * static_cast<float>(kLog2E);
        top = std::max(top, sink);
        weight = std::exp2(state.m[r] - top);
        mass = l * weight / (l * weight + std::exp2(sink - top));
        l = l * weight + std::exp2(sink - top);
      }
      row_scale(o, weight / l, dv);
      if (p.recipe.rotate == Rotate::qkv) hadamard_rows(o, 1, dv, dv, v_rotation_block(p, t.cache));
      for (std::int64_t i = 0; seq.v_mean != nullptr && i < dv; ++i) o[i] += mass * seq.v_mean[task.kv_head * dv + i];
      lse = (top + std::log2(l)) * static_cast<float>(kLn2) + shift;
    }
    store_row(t.out, row_offset(t.out, t, task.sequence, row.token, row.head), dv, o);
    if (t.lse != nullptr) t.lse[lse_offset(t, task.sequence, row.token, row.head)] = lse;
  }
}

}  // namespace mpfa::cpu
