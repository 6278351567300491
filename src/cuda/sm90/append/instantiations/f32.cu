#include "cuda/sm90/append/launch.cuh"

namespace mpfa::sm90 {

template cudaError_t launch_append_of<AppendInput::f32>(bool, const AppendParams&, cudaStream_t);

}  // namespace mpfa::sm90
