// What the host code of all sm_90 kernels asks first.
#pragma once

#include "mpfa/formats.hpp"
#include "mpfa/status.hpp"

namespace mpfa::sm90 {

/// Multiprocessors of the current device, or why it is no sm_90.
[[nodiscard]] Result<int> current_device();

/// Whether `pointer` is memory that kernels of the current device may use; `name` is of the call's argument.
[[nodiscard]] Status check_on_device(const char* name, const void* pointer);

/// mxfp4 or nvfp4 along the head dim, any scale rule.
[[nodiscard]] bool is_fp4(const BlockFormat& f);

}  // namespace mpfa::sm90
