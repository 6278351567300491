// `mpfa doctor`: what this machine has, and which kernels would run on it.
#pragma once

#include <string>

namespace mpfa::cli {

[[nodiscard]] std::string doctor_report(bool json);

}  // namespace mpfa::cli
