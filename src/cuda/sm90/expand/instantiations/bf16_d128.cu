#include "cuda/sm90/expand/instantiate.cuh"

namespace mpfa::sm90 {
template DecodeKernel expand_kernel<128, Operand::bf16, Operand::bf16>(std::int32_t row_blocks);
}
