#include "cache/rope.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "cache/convert.hpp"
#include "cache/sequence.hpp"
#include "threads/run_tasks.hpp"

namespace mpfa {

RopeRow::RopeRow(const Rope& rope, std::int64_t position)
    : half_(rope.cos.shape[1]), begin_(rope.begin), style_(rope.style) {
  const auto row = [&](const TensorView& table, float* copy) -> const float* {
    const std::int64_t offset = position * table.stride[0];
    if (table.dtype == DType::f32 && table.stride[1] == 1) return static_cast<const float*>(table.data) + offset;
    load_row(table.data, table.dtype, offset, table.stride[1], half_, copy);
    return copy;
  };
  cos_ = row(rope.cos, cos_copy_.data());
  sin_ = row(rope.sin, sin_copy_.data());
}

bool RopeRow::set_delta(const Rope& rope, std::int64_t delta) {
  half_ = rope.cos.shape[1];
  begin_ = rope.begin;
  style_ = rope.style;
  const std::int64_t row = std::abs(delta);
  load_row(rope.cos.data, rope.cos.dtype, row * rope.cos.stride[0], rope.cos.stride[1], half_, cos_copy_.data());
  load_row(rope.sin.data, rope.sin.dtype, row * rope.sin.stride[0], rope.sin.stride[1], half_, sin_copy_.data());
  for (std::int64_t i = 0; i < half_; ++i) {
    const double c = cos_copy_[i], s = delta < 0 ? -sin_copy_[i] : sin_copy_[i];
    const double length = std::sqrt(c * c + s * s);
    if (!(length > 0.0) || !std::isfinite(length)) return false;
    cos_copy_[i] = static_cast<float>(c / length);
    sin_copy_[i] = static_cast<float>(s / length);
  }
  cos_ = cos_copy_.data();
  sin_ = sin_copy_.data();
  return true;
}

Status check_rope(const char* call, const Rope& rope, std::int64_t head_dim) {
  const auto invalid = [&](std::string text) { return Status(StatusCode::invalid_argument, std::move(text)); };
  if (rope.style != RopeStyle::half && rope.style != RopeStyle::interleaved) {
    return invalid(fmt::format("{}: rope.style is {}; take half or interleaved", call, static_cast<int>(rope.style)));
  }
  for (const TensorView* t : {&rope.cos, &rope.sin}) {
    const char* name = t == &rope.cos ? "cos" : "sin";
    if (t->dtype != DType::f32 && t->dtype != DType::bf16 && t->dtype != DType::f16) {
      return invalid(
          fmt::format("{}: rope.{} must be float32, bfloat16 or float16; convert it before the call", call, name));
    }
    const std::int64_t half = t->shape[1];
    if (t->shape[0] < 1 || half < 1 || rope.begin < 0 || half > (head_dim - rope.begin) / 2 || t->shape[2] != 1 ||
        t->shape[3] != 1) {
      return invalid(
          fmt::format("{}: rope.{} has shape [{}, {}, {}, {}] and rope.begin is {}; [positions, half] is "
                      "needed with begin + 2 * half at most the head dim {}",
                      call, name, t->shape[0], half, t->shape[2], t->shape[3], rope.begin, head_dim));
    }
    if (t->data == nullptr) return invalid(fmt::format("{}: rope.{} is a null pointer", call, name));
  }
  if (rope.cos.shape != rope.sin.shape) {
    return invalid(fmt::format("{}: rope.cos has shape [{}, {}], rope.sin [{}, {}]; they must be equal", call,
                               rope.cos.shape[0], rope.cos.shape[1], rope.sin.shape[0], rope.sin.shape[1]));
  }
  return {};
}

Status check_rope(const char* call, const Rope& rope, const CacheConfig& config) {
  MPFA_RETURN_IF_ERROR(check_rope(call, rope, config.head_dim));
  if (!config.shared_kv || rope.begin >= config.head_dim_v) return {};
  return {StatusCode::invalid_argument,
          fmt::format("{}: rope turns channels from {} on, but V is the first {} channels of K (shared_kv); take "
                      "rope.begin {} or more",
                      call, rope.begin, config.head_dim_v, config.head_dim_v)};
}

Status check_position(const char* call, const Rope& rope, std::int64_t position, const char* what, std::int64_t index,
                      std::int64_t row) {
  if (position >= 0 && position < rope.cos.shape[0]) return {};
  return {
      StatusCode::out_of_range,
      fmt::format("{}: {} {} of row {} is at position {}; rope.cos and rope.sin have rows 0..{}, pass longer tables",
                  call, what, index, row, position, rope.cos.shape[0] - 1)};
}

Status check_queries(const char* call, const Rope& rope, std::int64_t n, std::int64_t s, std::int64_t q_heads,
                     std::int64_t head_dim) {
  const std::int64_t rows = rope.q_positions == nullptr ? s : rope.q.shape[1];
  MPFA_RETURN_IF_ERROR(check_tokens(call, "rope.q", rope.q, n, rows, q_heads, head_dim));
  const MutableTensorView& out = rope.q_out;
  return check_tokens(call, "rope.q_out", {out.data, out.dtype, out.shape, out.stride}, n, rows, q_heads, head_dim);
}

void rotate_queries(const CacheConfig& config, const Rope& rope, const std::vector<std::int64_t>& positions) {
  const TensorView& q = rope.q;
  const std::int64_t q_rows = q.shape[1];
  const auto all = static_cast<std::int64_t>(positions.size());
  const int threads = threads_for(config, all * q.shape[2] * q.shape[3]);
  threads::run_tasks(config.executor, all, threads, [&](std::int64_t i, int) {
    if (positions[i] < 0) return;
    const RopeRow turn(rope, positions[i]);
    for (std::int64_t h = 0; h < q.shape[2]; ++h) {
      const auto at = [&](const std::array<std::int64_t, 4>& stride) {
        return i / q_rows * stride[0] + i % q_rows * stride[1] + h * stride[2];
      };
      rows::Row row;
      rows::load(q, at(q.stride), q.stride[3], q.shape[3], row.x);
      turn.turn(row.x);
      rows::store(row.x, q.shape[3], rope.q_out, at(rope.q_out.stride), rope.q_out.stride[3]);
    }
  });
}

}  // namespace mpfa
