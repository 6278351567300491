#include "cuda/sm90/verify/instantiate.cuh"

namespace mpfa::sm90 {
template DecodeKernel verify_kernel<64, Operand::int4, Operand::int4>(std::int32_t row_tiles, std::int32_t teams,
                                                                      VerifyCase kind);
}
