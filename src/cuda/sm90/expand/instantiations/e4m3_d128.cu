#include "cuda/sm90/expand/instantiate.cuh"

namespace mpfa::sm90 {
template DecodeKernel expand_kernel<128, Operand::e4m3, Operand::e4m3>(std::int32_t row_blocks);
}
