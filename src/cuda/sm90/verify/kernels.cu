#include "cuda/sm90/verify/kernels.h"

namespace mpfa::sm90 {

DecodeKernel verify_kernel(std::int32_t head_dim, OperandPair operands, std::int32_t row_tiles, std::int32_t teams,
                           VerifyCase kind) {
  if (!has_verify_kernel(head_dim, operands)) return {};
  switch (operands.key) {
    case Operand::mxfp4: return verify_kernel<128, Operand::mxfp4, Operand::mxfp4>(row_tiles, teams, kind);
    case Operand::nvfp4:
      if (operands == kMixedPair) return verify_kernel<128, Operand::nvfp4, Operand::e4m3>(row_tiles, teams, kind);
      return verify_kernel<128, Operand::nvfp4, Operand::nvfp4>(row_tiles, teams, kind);
    case Operand::fp4_f32: return verify_kernel<128, Operand::fp4_f32, Operand::fp4_f32>(row_tiles, teams, kind);
    case Operand::int4: return verify_kernel<128, Operand::int4, Operand::int4>(row_tiles, teams, kind);
    case Operand::int8: return verify_kernel<128, Operand::int8, Operand::int8>(row_tiles, teams, kind);
    case Operand::e4m3: return verify_kernel<128, Operand::e4m3, Operand::e4m3>(row_tiles, teams, kind);
    default: return verify_kernel<128, Operand::bf16, Operand::bf16>(row_tiles, teams, kind);
  }
}

}  // namespace mpfa::sm90
