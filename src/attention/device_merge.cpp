#include "mpfa/device_merge.hpp"

#include "attention/device_kind.hpp"
#ifdef MPFA_HAVE_CUDA
#include "cuda/sm90/merge_states.hpp"
#endif

namespace mpfa {

Status merge_states([[maybe_unused]] const StateMerge& merge, Device device) {
  if (device == Device::cpu) {
    return {StatusCode::unsupported,
            "merge_states: the device is cpu; this call is for results in GPU memory, on the host use "
            "merge_states(rows, d, ...)"};
  }
  MPFA_RETURN_IF_ERROR(check_built("merge_states", device));
#ifdef MPFA_HAVE_CUDA
  return sm90::merge_states(merge);
#else
  return {};
#endif
}

}  // namespace mpfa
