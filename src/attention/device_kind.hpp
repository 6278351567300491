// Which kernels the library has for a kind of device, apart from what this build or machine has.
#pragma once

#include "mpfa/attention.hpp"

namespace mpfa {

/// supports() of a build with every kernel: the same answer everywhere. The support matrix is made of it.
[[nodiscard]] Support supports_when_built(const AttentionProblem& problem, Device device);

/// ok when this build has kernels for the device; the message begins with `call`.
[[nodiscard]] Status check_built(const char* call, Device device);

}  // namespace mpfa
