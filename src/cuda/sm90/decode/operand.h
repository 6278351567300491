// The cache formats that the decode kernel reads, as kinds of operand: element, and how scales act.
#pragma once

#include <array>
#include <cstdint>

namespace mpfa::sm90 {

/// Formats whose bytes are read alike are one operand: e4m3 is fp8_e4m3 and fp8_e4m3_static; int8 and int4 have a
/// scale per token and head or per group of 32, 64 or 128 channels; fp4_f32 is mxfp4_f32 and mxfp4_f32_b64.
enum class Operand : std::uint8_t { mxfp4, nvfp4, fp4_f32, int4, int8, e4m3, bf16 };

enum class ScaleKind : std::uint8_t {
  none,
  row,    // f32 of a token, or none stored (1)
  group,  // f32 or f16 of 32 channels or a multiple
  e8m0,   // power of two of 32 channels
  e4m3,   // of 16 channels
};

struct OperandInfo {
  int bits;  // of an element
  ScaleKind scale;
  float unit;    // what expanding the codes leaves out
  bool has_nan;  // some codes are NaN or Inf
};

constexpr OperandInfo operand_info(Operand o) {
  switch (o) {
    case Operand::mxfp4: return {4, ScaleKind::e8m0, 0x1p14F, false};
    case Operand::nvfp4: return {4, ScaleKind::e4m3, 0x1p14F, false};
    case Operand::fp4_f32: return {4, ScaleKind::group, 0x1p14F, false};
    case Operand::int4: return {4, ScaleKind::group, 0x1p9F, false};
    case Operand::int8: return {8, ScaleKind::group, 1.0F, false};
    case Operand::e4m3: return {8, ScaleKind::row, 1.0F, true};
    case Operand::bf16: return {16, ScaleKind::none, 1.0F, true};
  }
  return {};
}

template <Operand kOperand>
inline constexpr OperandInfo kOperandInfo = operand_info(kOperand);

/// K and V that there are kernels for.
struct OperandPair {
  Operand key = Operand::mxfp4, value = Operand::mxfp4;
  friend constexpr bool operator==(OperandPair, OperandPair) = default;
};
inline constexpr std::array kOperandPairs{
    OperandPair{Operand::mxfp4, Operand::mxfp4},     OperandPair{Operand::nvfp4, Operand::nvfp4},
    OperandPair{Operand::fp4_f32, Operand::fp4_f32}, OperandPair{Operand::int4, Operand::int4},
    OperandPair{Operand::int8, Operand::int8},       OperandPair{Operand::e4m3, Operand::e4m3},
    OperandPair{Operand::bf16, Operand::bf16},       OperandPair{Operand::nvfp4, Operand::e4m3},
};

}  // namespace mpfa::sm90
