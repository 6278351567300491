// write_slots on sm_90 cards.
#pragma once

#include "mpfa/device_cache.hpp"

namespace mpfa::sm90 {

[[nodiscard]] Status write_slots(const SlotWrite& write);

}  // namespace mpfa::sm90
