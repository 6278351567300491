#include "cuda/sm90/verify/instantiate.cuh"

namespace mpfa::sm90 {
template DecodeKernel verify_kernel<256, Operand::fp4_f32, Operand::fp4_f32>(std::int32_t row_tiles, std::int32_t teams,
                                                                             VerifyCase kind);
}
