#include "cuda/sm90/expand/kernels.h"

namespace mpfa::sm90 {

DecodeKernel expand_kernel(std::int32_t head_dim, OperandPair operands, std::int32_t row_blocks) {
  if (!has_expand_kernel(head_dim, operands)) return {};
  switch (operands.key) {
    case Operand::mxfp4: return expand_kernel<128, Operand::mxfp4, Operand::mxfp4>(row_blocks);
    case Operand::fp4_f32: return expand_kernel<128, Operand::fp4_f32, Operand::fp4_f32>(row_blocks);
    case Operand::int4: return expand_kernel<128, Operand::int4, Operand::int4>(row_blocks);
    case Operand::e4m3: return expand_kernel<128, Operand::e4m3, Operand::e4m3>(row_blocks);
    case Operand::bf16:
      return head_dim == 256 ? expand_kernel<256, Operand::bf16, Operand::bf16>(row_blocks)
                             : expand_kernel<128, Operand::bf16, Operand::bf16>(row_blocks);
    case Operand::int8: return expand_kernel<128, Operand::int8, Operand::int8>(row_blocks);
    default: break;
  }
  return operands.value == Operand::e4m3 ? expand_kernel<128, Operand::nvfp4, Operand::e4m3>(row_blocks)
                                         : expand_kernel<128, Operand::nvfp4, Operand::nvfp4>(row_blocks);
}

}  // namespace mpfa::sm90
