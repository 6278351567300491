#include "cuda/sm90/verify/kernels.h"

namespace mpfa::sm90 {

DecodeKernel verify_kernel(std::int32_t head_dim, OperandPair operands, std::int32_t row_tiles, std::int32_t teams,
                           VerifyCase kind) {
  using O = Operand;
  if (!has_verify_kernel(head_dim, operands)) return {};
  const auto of_dim = [&]<O kKey, O kValue>() {
    if constexpr (has_verify_kernel(64, {kKey, kValue})) {
      if (head_dim == 64) return verify_kernel<64, kKey, kValue>(row_tiles, teams, kind);
    }
    if constexpr (has_verify_kernel(256, {kKey, kValue})) {
      if (head_dim == 256) return verify_kernel<256, kKey, kValue>(row_tiles, teams, kind);
    }
    return verify_kernel<128, kKey, kValue>(row_tiles, teams, kind);
  };
  switch (operands.key) {
    case O::mxfp4: return of_dim.operator()<O::mxfp4, O::mxfp4>();
    case O::nvfp4:
      return operands == kMixedPair ? of_dim.operator()<O::nvfp4, O::e4m3>() : of_dim.operator()<O::nvfp4, O::nvfp4>();
    case O::fp4_f32: return of_dim.operator()<O::fp4_f32, O::fp4_f32>();
    case O::int4: return of_dim.operator()<O::int4, O::int4>();
    case O::int8: return of_dim.operator()<O::int8, O::int8>();
    case O::e4m3: return of_dim.operator()<O::e4m3, O::e4m3>();
    default: return of_dim.operator()<O::bf16, O::bf16>();
  }
}

}  // namespace mpfa::sm90
