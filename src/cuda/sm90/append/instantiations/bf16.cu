#include "cuda/sm90/append/launch.cuh"

namespace mpfa::sm90 {

template cudaError_t launch_append_of<AppendInput::bf16>(bool, const AppendParams&, cudaStream_t);
template cudaError_t launch_convert_of<AppendInput::bf16>(const ConvertParams&, cudaStream_t);

}  // namespace mpfa::sm90
