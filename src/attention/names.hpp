// Enum names for messages.
#pragma once

#include "mpfa/attention.hpp"

namespace mpfa {

[[nodiscard]] constexpr const char* dtype_name(DType t) {
  switch (t) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::u8: return "u8";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
  }
  return "unknown";
}

[[nodiscard]] constexpr const char* device_name(Device d) {
  switch (d) {
    case Device::cpu: return "cpu";
    case Device::sm90: return "sm90";
    case Device::sm100: return "sm100";
    case Device::sm120: return "sm120";
  }
  return "unknown";
}

}  // namespace mpfa
