#include "mpfa/device_cache.hpp"

#include <fmt/format.h>

#include "attention/names.hpp"
#ifdef MPFA_HAVE_CUDA
#include "cuda/sm90/convert_pages.hpp"
#include "cuda/sm90/write_slots.hpp"
#endif

namespace mpfa {

Status write_slots([[maybe_unused]] const SlotWrite& write, Device device) {
#ifdef MPFA_HAVE_CUDA
  if (device == Device::sm90) return sm90::write_slots(write);
#endif
  return {StatusCode::unsupported,
          fmt::format("write_slots: no {} kernel in this build; on the host use PagedCache::write_slots",
                      device_name(device))};
}

Result<MutablePages> convert_pages([[maybe_unused]] const PageConversion& conversion, Device device) {
#ifdef MPFA_HAVE_CUDA
  if (device == Device::sm90) return sm90::convert_pages(conversion);
#endif
  return Status{StatusCode::unsupported,
                fmt::format("convert_pages: no {} kernel in this build; on the host use convert_pages(pages, ...)",
                            device_name(device))};
}

}  // namespace mpfa
