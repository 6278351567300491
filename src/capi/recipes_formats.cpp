// Version, recipes, formats and plain quantising behind the C ABI.
#include "capi/handles.hpp"

using mpfa::Status;
using mpfa::capi::guarded;
using mpfa::capi::invalid;
using mpfa::capi::not_null;

namespace {

/// The format, checked against the sizes of one page.
mpfa::Result<mpfa::BlockFormat> page_format(const char* call, const char* name, std::int64_t head_dim,
                                            std::int64_t tokens) {
  if (Status s = not_null(call, "format", name); !s.ok()) return s;
  auto format = mpfa::parse_format(name);
  if (!format.ok()) return format.status();
  if (Status s = mpfa::check_format(format.value(), head_dim, tokens); !s.ok()) return s;
  return format;
}

Status check_room(const char* call, const char* what, const void* pointer, std::size_t given, std::int64_t needed) {
  if (needed == 0) return {};
  MPFA_RETURN_IF_ERROR(not_null(call, what, pointer));
  if (given >= static_cast<std::size_t>(needed)) return {};
  return invalid(
      fmt::format("{}: {} holds {} bytes, {} are needed; ask mpfa_format_geometry", call, what, given, needed));
}

/// The page over the caller's two buffers. x is [tokens, head_dim] with rows x_stride floats apart.
mpfa::Result<mpfa::PageGeometry> check_page(const char* call, const mpfa::BlockFormat& format, std::int64_t head_dim,
                                            std::int64_t tokens, const float* x, std::int64_t x_stride,
                                            const void* data, std::size_t data_bytes, const void* scales,
                                            std::size_t scale_bytes) {
  if (Status s = not_null(call, "x", x); !s.ok()) return s;
  if (x_stride < head_dim) {
    return invalid(fmt::format("{}: x_stride is {}; rows of {} floats need at least that", call, x_stride, head_dim));
  }
  const mpfa::PageGeometry geometry = mpfa::page_geometry(format, head_dim, tokens);
  if (Status s = check_room(call, "data", data, data_bytes, geometry.data_bytes()); !s.ok()) return s;
  if (Status s = check_room(call, "scales", scales, scale_bytes, geometry.scale_bytes()); !s.ok()) return s;
  return geometry;
}

const char* name_at(const std::vector<std::string>& names, std::int64_t index) {
  return index >= 0 && index < static_cast<std::int64_t>(names.size()) ? names[index].c_str() : nullptr;
}

}  // namespace

extern "C" {

const char* mpfa_version(void) {
  return MPFA_VERSION;
}

mpfa_status mpfa_check_abi(int abi_version, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    if (abi_version == MPFA_ABI_VERSION) return {};
    return {mpfa::StatusCode::unsupported,
            fmt::format("mpfa_check_abi: the program was compiled for ABI {}, this library (version {}) has ABI {}; "
                        "rebuild the program with the header of this library",
                        abi_version, MPFA_VERSION, MPFA_ABI_VERSION)};
  });
}

const char* mpfa_recipe_name(int64_t index) {
  return name_at(mpfa::recipe_names(), index);
}
const char* mpfa_format_name(int64_t index) {
  return name_at(mpfa::format_names(), index);
}

mpfa_status mpfa_recipe_parse(const char* text, mpfa_recipe** recipe, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_recipe_parse", "text", text));
    MPFA_RETURN_IF_ERROR(not_null("mpfa_recipe_parse", "recipe", recipe));
    *recipe = nullptr;
    auto parsed = mpfa::parse_recipe(text);
    if (!parsed.ok()) return parsed.status();
    *recipe = new mpfa_recipe{parsed.value(), mpfa::recipe_text(parsed.value())};
    return {};
  });
}

const char* mpfa_recipe_text(const mpfa_recipe* recipe) {
  return recipe == nullptr ? nullptr : recipe->text.c_str();
}

void mpfa_recipe_destroy(mpfa_recipe* recipe) {
  delete recipe;
}

mpfa_status mpfa_format_geometry(const char* format, int64_t head_dim, int64_t tokens, mpfa_geometry* geometry,
                                 mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_format_geometry", "geometry", geometry));
    const auto parsed = page_format("mpfa_format_geometry", format, head_dim, tokens);
    if (!parsed.ok()) return parsed.status();
    const mpfa::PageGeometry g = mpfa::page_geometry(parsed.value(), head_dim, tokens);
    *geometry = {g.data_rows, g.data_row_bytes, g.scale_rows, g.scale_row_bytes};
    return {};
  });
}

mpfa_status mpfa_quantize(const char* format, int64_t head_dim, int64_t tokens, const float* x, int64_t x_stride,
                          float global, void* data, size_t data_bytes, void* scales, size_t scale_bytes,
                          mpfa_counters* counters, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    const auto parsed = page_format("mpfa_quantize", format, head_dim, tokens);
    if (!parsed.ok()) return parsed.status();
    const auto geometry = check_page("mpfa_quantize", parsed.value(), head_dim, tokens, x, x_stride, data, data_bytes,
                                     scales, scale_bytes);
    if (!geometry.ok()) return geometry.status();
    mpfa::QuantiseCounters met;
    mpfa::PageBytes page{static_cast<std::byte*>(data), geometry.value().data_row_bytes,
                         static_cast<std::byte*>(scales), geometry.value().scale_row_bytes};
    mpfa::quantise_tokens(parsed.value(), head_dim, 0, tokens, x, x_stride, global, page, &met);
    if (counters != nullptr) {
      counters->nonfinite_blocks += met.nonfinite_blocks;
      counters->saturated_elements += met.saturated_elements;
      counters->flushed_blocks += met.flushed_blocks;
    }
    return {};
  });
}

mpfa_status mpfa_dequantize(const char* format, int64_t head_dim, int64_t tokens, const void* data, size_t data_bytes,
                            const void* scales, size_t scale_bytes, float global, float* x, int64_t x_stride,
                            mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    const auto parsed = page_format("mpfa_dequantize", format, head_dim, tokens);
    if (!parsed.ok()) return parsed.status();
    const auto geometry = check_page("mpfa_dequantize", parsed.value(), head_dim, tokens, x, x_stride, data, data_bytes,
                                     scales, scale_bytes);
    if (!geometry.ok()) return geometry.status();
    const mpfa::ConstPageBytes page{static_cast<const std::byte*>(data), geometry.value().data_row_bytes,
                                    static_cast<const std::byte*>(scales), geometry.value().scale_row_bytes};
    mpfa::dequantise_tokens(parsed.value(), head_dim, 0, tokens, page, global, x, x_stride, 1);
    return {};
  });
}

}  // extern "C"
