// Rotary tables, positions and queries as a fuzz input asks for, and the rotation itself, pair by pair.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "mpfa/mpfa.h"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/sixteen_bits.hpp"

namespace mpfa::fuzz {

constexpr std::int64_t kTableRows = 320, kTablePairs = 288;

/// cos and sin of fixed frequencies as caller's bits in one dtype, and the numbers that these bits are.
struct RopeTables {
  mpfa_dtype dtype;
  std::vector<float> cos, sin;
  std::vector<std::uint16_t> cos16, sin16;

  explicit RopeTables(mpfa_dtype t) : dtype(t) {
    const auto keep = [&](float x, std::vector<float>& values, std::vector<std::uint16_t>& codes) {
      if (t == MPFA_F32) return values.push_back(x);
      codes.push_back(to_sixteen(t == MPFA_BF16, x));
      values.push_back(from_sixteen(t == MPFA_BF16, codes.back()));
    };
    for (std::int64_t p = 0; p < kTableRows; ++p) {
      for (std::int64_t i = 0; i < kTablePairs; ++i) {
        const float angle = static_cast<float>(p) / static_cast<float>(1 + i);
        keep(std::cos(angle), cos, cos16);
        keep(std::sin(angle), sin, sin16);
      }
    }
  }

  static const RopeTables& of(mpfa_dtype t) {
    static const RopeTables f32(MPFA_F32), bf16(MPFA_BF16), f16(MPFA_F16);
    return t == MPFA_F32 ? f32 : t == MPFA_BF16 ? bf16 : f16;
  }
};

class RopeInput {
 public:
  mpfa_rope rope{};

  RopeInput(Input& in, const mpfa_cache_config& c) {
    constexpr mpfa_dtype kTypes[] = {MPFA_F32, MPFA_F32, MPFA_BF16, MPFA_F16};
    tables_ = &RopeTables::of(in.pick(kTypes));
    mpfa_rope_init(&rope, sizeof rope);
    rope.style = in.rarely(256) ? 2 : static_cast<mpfa_rope_style>(in.between(0, 1));
    const std::int64_t first = c.shared_kv == 1 && !in.rarely(8) ? c.head_dim_v : 0;
    const std::int64_t begin = in.size(0, 2);
    rope.begin = begin >= 0 && begin <= 2 ? first + begin : begin;
    const std::int64_t most = (c.head_dim - first) / 2;
    half_ = in.size(1, most < 1 ? 1 : most < kTablePairs ? most : kTablePairs);
    rows_ = in.rarely(8) ? in.between(0, 64) : kTableRows;
    const auto table = [&](const std::vector<float>& values, const std::vector<std::uint16_t>& codes) {
      const void* data = tables_->dtype == MPFA_F32 ? static_cast<const void*>(values.data()) : codes.data();
      mpfa_tensor t = mpfa_contiguous(const_cast<void*>(data), tables_->dtype, rows_, half_, 1, 1);
      t.stride[0] = kTablePairs;
      return t;
    };
    rope.cos = table(tables_->cos, tables_->cos16);
    rope.sin = table(tables_->sin, tables_->sin16);
    if (in.rarely(256)) rope.sin.shape[1] ^= 1;
    if (in.rarely(256)) rope.cos.data = nullptr;
  }

  /// Positions and queries of a call on [n, s] tokens.
  void of_tokens(Input& in, const mpfa_cache_config& c, std::int64_t n, std::int64_t s) {
    if (in.coin()) rope.positions = list(in, n * s, positions_);
    if (in.coin()) return;
    std::int64_t rows = s;
    if (in.rarely(4)) {
      rows = in.between(0, 6);
      rope.q_positions = list(in, n * rows, q_positions_);
    }
    q_.resize(static_cast<std::size_t>(n * rows * c.q_heads * c.head_dim) + 1);
    for (std::size_t i = 0; i < q_.size(); ++i) q_[i] = number(11, i);
    q_before_ = q_;
    q_out_.assign(q_.size(), kMark);
    rope.q = mpfa_contiguous(q_.data(), MPFA_F32, n, rows, c.q_heads, c.head_dim);
    rope.q_out = rope.q;
    if (in.coin()) rope.q_out.data = q_out_.data();
    if (in.rarely(256)) rope.q_out.shape[1] += 1;
  }

  /// Turns one head of a token as row `position` of the tables says; no other position was accepted.
  void turn(float* x, std::int64_t position) const {
    if (position < 0 || position >= rows_) return;
    for_pairs(x, position, [](float& a, float& b, float cos, float sin) {
      const float ac = a * cos, bs = b * sin, as = a * sin, bc = b * cos;
      a = ac - bs;
      b = as + bc;
    });
  }
  /// As shift does: by the rotation nearest to row |delta|, and back where delta is negative.
  void turn_by(float* x, std::int64_t delta) const {
    for_pairs(x, std::abs(delta), [&](float& a, float& b, float cos, float sin) {
      const float length = std::hypot(cos, sin), c = cos / length, s = (delta < 0 ? -sin : sin) / length, first = a;
      a = a * c - b * s;
      b = first * s + b * c;
    });
  }

  /// q_out against rows turned one by one; position(i, r) is that of token r of row i, negative for a skipped one.
  template <class Position>
  void check_queries(bool done, Position position) const {
    if (rope.q.data == nullptr) return;
    const bool in_place = rope.q_out.data == rope.q.data;
    require(in_place || q_ == q_before_, "the rotation changed q");
    std::vector<float> want = in_place ? q_before_ : std::vector<float>(q_.size(), kMark);
    const std::int64_t rows = rope.q.shape[1], heads = rope.q.shape[2], d = rope.q.shape[3];
    for (std::int64_t i = 0; done && i < rope.q.shape[0] * rows; ++i) {
      const std::int64_t at = rope.q_positions == nullptr ? position(i / rows, i % rows) : rope.q_positions[i];
      for (std::int64_t h = 0; at >= 0 && h < heads; ++h) {
        float* row = want.data() + (i * heads + h) * d;
        std::copy_n(q_before_.data() + (i * heads + h) * d, d, row);
        turn(row, at);
      }
    }
    require(want == (in_place ? q_ : q_out_), "rotated queries differ, or a refused call wrote them");
  }

 private:
  template <class Turn>
  void for_pairs(float* x, std::int64_t row, Turn turn) const {
    for (std::int64_t i = 0; i < half_; ++i) {
      const bool halves = rope.style == MPFA_ROPE_HALF;
      const auto at = static_cast<std::size_t>(row * kTablePairs + i);
      turn(x[rope.begin + (halves ? i : 2 * i)], x[rope.begin + (halves ? half_ + i : 2 * i + 1)], tables_->cos[at],
           tables_->sin[at]);
    }
  }

  static constexpr float kMark = 55.0F;

  static const std::int64_t* list(Input& in, std::int64_t n, std::vector<std::int64_t>& to) {
    const std::int64_t first = in.size(0, 200), step = in.between(0, 2);
    for (std::int64_t i = 0; i < n; ++i) {
      to.push_back(i == 0 ? first : (std::clamp<std::int64_t>(first, 0, kTableRows) + i * step) % kTableRows);
    }
    return to.data();
  }

  const RopeTables* tables_;
  std::int64_t half_ = 0, rows_ = 0;
  std::vector<std::int64_t> positions_, q_positions_;
  std::vector<float> q_, q_before_, q_out_;
};

}  // namespace mpfa::fuzz
