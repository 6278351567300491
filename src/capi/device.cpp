// Devices, and writes to pages in GPU memory, behind the C ABI.
#include "capi/pages.hpp"
#include "mpfa/build_info.hpp"
#include "mpfa/device_cache.hpp"
#include "mpfa/device_merge.hpp"

using mpfa::Status;
using mpfa::capi::check_struct;
using mpfa::capi::guarded;
using mpfa::capi::not_null;

extern "C" {

const char* mpfa_build_info(void) {
  static const std::string text = mpfa::build_text();
  return text.c_str();
}

mpfa_status mpfa_available(mpfa_device device, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    const auto target = mpfa::capi::to_device("mpfa_available", device);
    if (!target.ok()) return target.status();
    return mpfa::available(target.value());
  });
}

mpfa_status mpfa_cuda_device(mpfa_device* device, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cuda_device", "device", device));
    const auto found = mpfa::cuda_device();
    if (!found.ok()) return found.status();
    *device = static_cast<mpfa_device>(found.value());
    return {};
  });
}

void mpfa_slot_write_init(mpfa_slot_write* write, size_t struct_size) {
  mpfa::capi::init_struct(write, struct_size, mpfa_slot_write{});
}

mpfa_status mpfa_write_slots(const mpfa_slot_write* write, mpfa_device device, mpfa_error* error) {
  static_assert(sizeof(uint64_t) == sizeof(unsigned long long));  // NOLINT: of atomicAdd
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_write_slots";
    if (Status s = check_struct(kCall, "write", write); !s.ok()) return s;
    const auto target = mpfa::capi::to_device(kCall, device);
    if (!target.ok()) return target.status();
    const auto kp = mpfa::capi::to_mutable(kCall, "k_pages", write->k_pages);
    if (!kp.ok()) return kp.status();
    const auto k = mpfa::capi::to_view(kCall, "k", write->k), v = mpfa::capi::to_view(kCall, "v", write->v);
    if (!k.ok()) return k.status();
    if (!v.ok()) return v.status();
    mpfa::SlotWrite call;
    call.k_pages = kp.value();
    if (write->v_pages != nullptr || write->v.data != nullptr) {
      const auto vp = mpfa::capi::to_mutable(kCall, "v_pages", write->v_pages);
      if (!vp.ok()) return vp.status();
      call.v_pages = vp.value();
    }
    mpfa::Rope rope;
    if (write->rope != nullptr) {
      const auto turn = mpfa::capi::to_rope(kCall, write->rope);
      if (!turn.ok()) return turn.status();
      rope = turn.value();
      call.rope = &rope;
    }
    call.k = k.value();
    call.v = v.value();
    call.slot_mapping = write->slot_mapping;
    call.k_mean = write->k_mean;
    call.v_mean = write->v_mean;
    call.counters = reinterpret_cast<unsigned long long*>(write->counters);  // NOLINT
    call.stream = write->stream;
    return mpfa::write_slots(call, target.value());
  });
}

void mpfa_page_conversion_init(mpfa_page_conversion* conversion, size_t struct_size) {
  mpfa::capi::init_struct(conversion, struct_size, mpfa_page_conversion{});
}

mpfa_status mpfa_convert_pages(const mpfa_page_conversion* conversion, mpfa_device device, mpfa_pages* converted,
                               mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_convert_pages";
    if (Status s = check_struct(kCall, "conversion", conversion); !s.ok()) return s;
    const mpfa_page_conversion& c = *conversion;
    const auto target = mpfa::capi::to_device(kCall, device);
    if (!target.ok()) return target.status();
    const auto pages = mpfa::capi::to_mutable(kCall, "pages", c.pages);
    if (!pages.ok()) return pages.status();
    MPFA_RETURN_IF_ERROR(not_null(kCall, "format", c.format));
    MPFA_RETURN_IF_ERROR(not_null(kCall, "converted", converted));
    if (converted == c.pages) {
      return mpfa::capi::invalid(fmt::format("{}: converted is pages; pass a struct of its own", kCall));
    }
    const auto format = mpfa::parse_format(c.format);
    if (!format.ok()) return format.status();
    mpfa::PageConversion call;
    call.pages = pages.value();
    call.format = format.value();
    call.ids = c.ids;
    call.n = c.count;
    call.mean = c.mean;
    call.global = c.global;
    call.counters = reinterpret_cast<unsigned long long*>(c.counters);  // NOLINT
    call.stream = c.stream;
    const auto made = mpfa::convert_pages(call, target.value());
    if (!made.ok()) return made.status();
    mpfa::capi::set_converted(*c.pages, c.format, c.global, made.value(), *converted);
    return {};
  });
}

void mpfa_state_merge_init(mpfa_state_merge* merge, size_t struct_size) {
  mpfa::capi::init_struct(merge, struct_size, mpfa_state_merge{});
}

mpfa_status mpfa_merge(const mpfa_state_merge* merge, mpfa_device device, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_merge";
    if (Status s = check_struct(kCall, "merge", merge); !s.ok()) return s;
    const auto target = mpfa::capi::to_device(kCall, device);
    if (!target.ok()) return target.status();
    const auto a = mpfa::capi::to_view(kCall, "a", merge->a), b = mpfa::capi::to_view(kCall, "b", merge->b),
               out = mpfa::capi::to_view(kCall, "out", merge->out);
    if (!a.ok()) return a.status();
    if (!b.ok()) return b.status();
    if (!out.ok()) return out.status();
    mpfa::StateMerge call;
    call.a = a.value();
    call.b = b.value();
    call.lse_a = merge->lse_a;
    call.lse_b = merge->lse_b;
    call.out = {merge->out.data, out.value().dtype, out.value().shape, out.value().stride};
    call.lse = merge->lse;
    call.stream = merge->stream;
    return mpfa::merge_states(call, target.value());
  });
}

}  // extern "C"
