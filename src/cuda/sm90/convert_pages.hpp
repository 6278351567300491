// convert_pages on sm_90 cards.
#pragma once

#include "mpfa/device_cache.hpp"

namespace mpfa::sm90 {

[[nodiscard]] Result<MutablePages> convert_pages(const PageConversion& conversion);

}  // namespace mpfa::sm90
