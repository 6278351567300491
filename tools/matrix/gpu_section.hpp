// What a GPU takes, as a section of the support matrix.
#pragma once

#include <string>

#include "mpfa/attention.hpp"

namespace mpfa::cli {

[[nodiscard]] std::string gpu_section(Device device);

}  // namespace mpfa::cli
