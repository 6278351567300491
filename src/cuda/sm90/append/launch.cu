#include "cuda/sm90/append/launch.h"

namespace mpfa::sm90 {

template <AppendInput kInput>
cudaError_t launch_append_of(bool rope, const AppendParams& p, cudaStream_t stream);
template <AppendInput kInput>
cudaError_t launch_convert_of(const ConvertParams& p, cudaStream_t stream);

extern template cudaError_t launch_append_of<AppendInput::f32>(bool, const AppendParams&, cudaStream_t);
extern template cudaError_t launch_append_of<AppendInput::bf16>(bool, const AppendParams&, cudaStream_t);
extern template cudaError_t launch_append_of<AppendInput::f16>(bool, const AppendParams&, cudaStream_t);
extern template cudaError_t launch_convert_of<AppendInput::bf16>(const ConvertParams&, cudaStream_t);
extern template cudaError_t launch_convert_of<AppendInput::f16>(const ConvertParams&, cudaStream_t);

cudaError_t launch_append(AppendInput input, bool rope, const AppendParams& p, cudaStream_t stream) {
  switch (input) {
    case AppendInput::f32: return launch_append_of<AppendInput::f32>(rope, p, stream);
    case AppendInput::bf16: return launch_append_of<AppendInput::bf16>(rope, p, stream);
    case AppendInput::f16: return launch_append_of<AppendInput::f16>(rope, p, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_convert(AppendInput input, const ConvertParams& p, cudaStream_t stream) {
  return input == AppendInput::f16 ? launch_convert_of<AppendInput::f16>(p, stream)
                                   : launch_convert_of<AppendInput::bf16>(p, stream);
}

}  // namespace mpfa::sm90
