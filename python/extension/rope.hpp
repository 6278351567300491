// Rotary embedding as Python passes it.
#pragma once

#include <memory>
#include <vector>

#include "extension/arrays.hpp"
#include "mpfa/rope.hpp"

namespace mpfa::python {

/// A Rope, with the arrays and positions its pointers point into.
struct RopeInput {
  Array cos, sin, q, q_out;
  std::vector<std::int64_t> positions, q_positions;
  Rope rope;
};

/// Tables [positions, half] of one dtype.
void import_tables(nb::handle cos, nb::handle sin, const char* cos_name, const char* sin_name, bool interleaved,
                   RopeInput& to, Place place = Place::host);
/// None gives null. Otherwise the tuple (cos, sin, interleaved, begin, positions, q, q_out, q_positions) for `tokens`
/// tokens of all sequences; positions and queries may be None. ragged: q is [rows, heads, head_dim].
[[nodiscard]] std::unique_ptr<RopeInput> import_rope(nb::handle rope, std::int64_t tokens, bool ragged);
/// The same of arrays in device memory, with positions int64 [tokens] and q_positions int64 [rows of q].
[[nodiscard]] std::unique_ptr<RopeInput> import_device_rope(nb::handle rope, std::int64_t tokens);

}  // namespace mpfa::python
