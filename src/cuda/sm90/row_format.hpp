// What the host code of write_slots and convert_pages shares: which formats have a kernel.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

#include "cuda/sm90/append/launch.h"
#include "mpfa/pages.hpp"
#include "mpfa/status.hpp"

namespace mpfa::sm90 {

/// Format, head dim and means of rows as the kernels take them, or why they do not; `name`: of the operand.
[[nodiscard]] Result<RowFormat> row_format(const char* call, const char* name, const PagesKind& kind, const float* mean,
                                           const float* global);
/// Bytes of one scale.
[[nodiscard]] std::int64_t scale_size(const BlockFormat& f);
/// `p` and all steps are multiples of `bytes`.
[[nodiscard]] bool aligned(const void* p, std::initializer_list<std::int64_t> steps, std::int64_t bytes);

template <class... Args>
[[nodiscard]] Status refused(StatusCode code, const char* call, fmt::format_string<Args...> text, Args&&... args) {
  return {code, fmt::format("{}: ", call) + fmt::format(text, std::forward<Args>(args)...)};
}

}  // namespace mpfa::sm90
