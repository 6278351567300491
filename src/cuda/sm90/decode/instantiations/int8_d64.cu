#include "cuda/sm90/decode/instantiate.cuh"

namespace mpfa::sm90 {
template DecodeKernel decode_kernel<64, Operand::int8, Operand::int8>(std::int32_t row_tiles, KernelCase kind,
                                                                      std::int32_t teams);
}
