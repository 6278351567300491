#include "cuda/sm90/verify/kernels.h"

namespace mpfa::sm90 {

DecodeKernel verify_kernel(std::int32_t head_dim, OperandPair operands, std::int32_t row_tiles, std::int32_t teams) {
  if (!has_verify_kernel(head_dim, operands)) return {};
  if (operands.key == Operand::mxfp4) return verify_kernel<128, Operand::mxfp4, Operand::mxfp4>(row_tiles, teams);
  return verify_kernel<128, Operand::nvfp4, Operand::nvfp4>(row_tiles, teams);
}

}  // namespace mpfa::sm90
