// The end of a row: normalise, sink, undo the rotation and centring of V, write output and LSE.
#pragma once

#include "cpu/tile.hpp"

namespace mpfa::cpu {

/// Writes the rows of a task; `state` is used up.
void store_rows(const Task& task, OnlineState& state);

}  // namespace mpfa::cpu
