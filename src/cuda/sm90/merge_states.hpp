// merge_states on sm_90 cards.
#pragma once

#include "mpfa/device_merge.hpp"

namespace mpfa::sm90 {

[[nodiscard]] Status merge_states(const StateMerge& merge);

}  // namespace mpfa::sm90
