#include "mpfa/device_cache.hpp"

#include <fmt/format.h>

#include "attention/device_kind.hpp"
#ifdef MPFA_HAVE_CUDA
#include "cuda/sm90/convert_pages.hpp"
#include "cuda/sm90/write_slots.hpp"
#endif

namespace mpfa {

namespace {

Status check_device(const char* call, const char* on_the_host, Device device) {
  if (device != Device::cpu) return check_built(call, device);
  return {StatusCode::unsupported,
          fmt::format("{}: the device is cpu; this call writes pages in GPU memory, on the host use {}", call,
                      on_the_host)};
}

}  // namespace

Status write_slots([[maybe_unused]] const SlotWrite& write, Device device) {
  MPFA_RETURN_IF_ERROR(check_device("write_slots", "PagedCache::write_slots or quantise_to_pages", device));
#ifdef MPFA_HAVE_CUDA
  return sm90::write_slots(write);
#else
  return {};
#endif
}

Result<MutablePages> convert_pages([[maybe_unused]] const PageConversion& conversion, Device device) {
  MPFA_RETURN_IF_ERROR(check_device("convert_pages", "convert_pages(pages, ...)", device));
#ifdef MPFA_HAVE_CUDA
  return sm90::convert_pages(conversion);
#else
  return Status{};
#endif
}

}  // namespace mpfa
