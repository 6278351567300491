// Attention problems and devices as Python names them.
#pragma once

#include <string>

#include "extension/arrays.hpp"
#include "mpfa/attention.hpp"

namespace mpfa::python {

/// From the tuple that problem_fields of mpfa/arguments.py makes.
[[nodiscard]] AttentionProblem import_problem(const nb::tuple& fields);

/// "cpu", "sm90", "sm100", "sm120"; "cuda" is the kind of the current CUDA device. Fails on other names.
[[nodiscard]] Result<Device> device_kind(const std::string& name);

}  // namespace mpfa::python
