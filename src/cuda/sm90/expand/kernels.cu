#include "cuda/sm90/expand/kernels.h"

namespace mpfa::sm90 {

DecodeKernel expand_kernel(std::int32_t head_dim, OperandPair operands, std::int32_t row_blocks) {
  if (!has_expand_kernel(head_dim, operands)) return {};
  if (operands.key == Operand::mxfp4) return expand_kernel<128, Operand::mxfp4, Operand::mxfp4>(row_blocks);
  return expand_kernel<128, Operand::nvfp4, Operand::nvfp4>(row_blocks);
}

}  // namespace mpfa::sm90
