// mpfa_pages to the C++ descriptions of pages, and back.
#pragma once

#include "capi/handles.hpp"
#include "mpfa/pages.hpp"

namespace mpfa::capi {

[[nodiscard]] Result<PagesKind> to_kind(const char* call, const char* name, const mpfa_pages* p);
[[nodiscard]] Result<Pages> to_pages(const char* call, const char* name, const mpfa_pages* p);
[[nodiscard]] Result<MutablePages> to_mutable(const char* call, const char* name, const mpfa_pages* p);

void set_data(mpfa_pages& p, const MutablePagePart& part);
void set_scales(mpfa_pages& p, const MutablePagePart& part);

/// Describes a pool that a conversion of `pages` made.
void set_converted(const mpfa_pages& pages, const char* format, const float* global, const MutablePages& made,
                   mpfa_pages& converted);

/// A size as the library has it; one past its largest becomes that.
[[nodiscard]] std::int64_t bytes_of(std::size_t n);

/// counters may be null.
void add_counters(const QuantiseCounters& met, mpfa_counters* counters);

}  // namespace mpfa::capi
