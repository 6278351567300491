// Formats, recipes and plain quantising for Python.
#include "mpfa/formats.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "cache/convert.hpp"
#include "extension/bindings.hpp"
#include "mpfa/recipe.hpp"

namespace mpfa::python {

namespace {

const char* scale_name(ScaleType t) {
  switch (t) {
    case ScaleType::none: return "none";
    case ScaleType::e8m0: return "e8m0";
    case ScaleType::e4m3: return "e4m3";
    case ScaleType::f16: return "float16";
    case ScaleType::f32: return "float32";
    case ScaleType::f16_zero: return "float16 scale, float16 minimum";
  }
  return "none";
}

struct Page {
  BlockFormat format;
  PageGeometry geometry;
};

Page page_of(const std::string& name, std::int64_t head_dim, std::int64_t tokens) {
  const BlockFormat format = take(parse_format(name));
  check(check_format(format, head_dim, tokens));
  if (tokens % format.block_keys != 0) {
    fail(
        "quantize: {} tokens do not fill the groups of {} that share a scale in {}; pad the tokens or use a format "
        "with blocks along the head dim",
        tokens, format.block_keys, name);
  }
  return {format, page_geometry(format, head_dim, tokens)};
}

void check_bytes(const Array& a, const char* name, std::int64_t heads, std::int64_t rows, std::int64_t row_bytes) {
  const bool contiguous = a.stride[2] == 1 || row_bytes <= 1;
  if (a.ndim != 3 || a.dtype != DType::u8 || a.shape[0] != heads || a.shape[1] != rows || a.shape[2] != row_bytes ||
      !contiguous) {
    fail("{} is {} of shape {}; uint8 [{}, {}, {}] with contiguous rows is needed", name, dtype_text(a.dtype),
         shape_text(a), heads, rows, row_bytes);
  }
}

float scale_of(const std::vector<float>& scale, std::int64_t head) {
  return scale.empty() ? 1.0F : scale[head];
}

/// x [heads, tokens, head_dim] -> data, scales [heads, rows, row_bytes] uint8. Returns the counters.
std::vector<std::int64_t> quantize(nb::handle x, const std::string& format, nb::handle scale, nb::handle data,
                                   nb::handle scales) {
  const Array in = import_array(x, "x");
  if (in.ndim != 3 || !is_float16_or_32(in.dtype)) {
    fail("x is {} of shape {}; float32, bfloat16 or float16 of shape [heads, tokens, head_dim] is needed",
         dtype_text(in.dtype), shape_text(in));
  }
  const std::int64_t heads = in.shape[0], tokens = in.shape[1], d = in.shape[2];
  const Page page = page_of(format, d, tokens);
  const PageGeometry& g = page.geometry;
  const std::vector<float> global = import_optional_floats(scale, "scale", {heads});
  const Array codes = import_array(data, "data", true);
  const Array scale_bytes = import_array(scales, "scales", true);
  check_bytes(codes, "data", heads, g.data_rows, g.data_row_bytes);
  check_bytes(scale_bytes, "scales", heads, g.scale_rows, g.scale_row_bytes);

  nb::gil_scoped_release released;
  QuantiseCounters met;
  std::vector<float> rows(static_cast<std::size_t>(tokens * d));
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      load_row(in.data, in.dtype, h * in.stride[0] + t * in.stride[1], in.stride[2], d, rows.data() + t * d);
    }
    const PageBytes bytes{static_cast<std::byte*>(codes.data) + h * codes.stride[0], codes.stride[1],
                          static_cast<std::byte*>(scale_bytes.data) + h * scale_bytes.stride[0], scale_bytes.stride[1]};
    quantise_tokens(page.format, d, 0, tokens, rows.data(), d, scale_of(global, h), bytes, &met);
  }
  return {met.saturated_elements, met.flushed_blocks, met.nonfinite_blocks};
}

/// The inverse, to out [heads, tokens, head_dim] float32 (contiguous).
void dequantize(nb::handle data, nb::handle scales, const std::string& format, nb::handle scale, nb::handle out) {
  const Array x = import_array(out, "out", true);
  if (x.ndim != 3 || x.dtype != DType::f32) fail("out is {}; float32 of 3 dimensions is needed", dtype_text(x.dtype));
  const std::int64_t heads = x.shape[0], tokens = x.shape[1], d = x.shape[2];
  const Page page = page_of(format, d, tokens);
  const PageGeometry& g = page.geometry;
  const std::vector<float> global = import_optional_floats(scale, "scale", {heads});
  const Array codes = import_array(data, "data");
  const Array scale_bytes = import_array(scales, "scales");
  check_bytes(codes, "data", heads, g.data_rows, g.data_row_bytes);
  check_bytes(scale_bytes, "scales", heads, g.scale_rows, g.scale_row_bytes);

  nb::gil_scoped_release released;
  for (std::int64_t h = 0; h < heads; ++h) {
    const ConstPageBytes bytes{static_cast<const std::byte*>(codes.data) + h * codes.stride[0], codes.stride[1],
                               static_cast<const std::byte*>(scale_bytes.data) + h * scale_bytes.stride[0],
                               scale_bytes.stride[1]};
    dequantise_tokens(page.format, d, 0, tokens, bytes, scale_of(global, h),
                      static_cast<float*>(x.data) + h * x.stride[0], x.stride[1], x.stride[2]);
  }
}

}  // namespace

void bind_formats(nb::module_& m) {
  const auto any = nb::arg().none();
  m.def("recipes", [] { return recipe_names(); });
  m.def("recipe_text", [](const std::string& text) { return recipe_text(take(parse_recipe(text))); });
  m.def("recipe_source", [](const std::string& name) { return recipe_source(name); });
  m.def("formats", [] { return format_names(); });
  m.def("format_description", [](const std::string& name) { return format_description(take(parse_format(name))); });
  m.def("format_geometry", [](const std::string& name, std::int64_t head_dim, std::int64_t tokens) {
    const PageGeometry g = page_of(name, head_dim, tokens).geometry;
    return std::tuple(g.data_rows, g.data_row_bytes, g.scale_rows, g.scale_row_bytes);
  });
  m.def("format_fields", [](const std::string& name) {
    const BlockFormat f = take(parse_format(name));
    return std::tuple(std::string(scale_name(f.scale)), f.axis == PackAxis::keys, f.block_channels, f.block_keys,
                      element_bits(f.element), f.rule == ScaleRule::fixed);
  });
  m.def("quantize", &quantize, any, nb::arg(), any, any, any);
  m.def("dequantize", &dequantize, any, any, nb::arg(), any, any);
  m.def("bytes_per_token", [](const std::string& recipe, std::int64_t q_heads, std::int64_t kv_heads,
                              std::int64_t head_dim, std::int64_t head_dim_v, std::int64_t page_size, bool shared_kv) {
    const Recipe r = take(parse_recipe(recipe));
    if (q_heads < 1 || kv_heads < 1 || q_heads % kv_heads != 0) {
      fail("bytes_per_token: {} query heads over {} KV heads; a whole multiple of at least 1 is needed", q_heads,
           kv_heads);
    }
    check(check_format(r.k, head_dim, page_size));
    check(check_format(r.v, head_dim_v, page_size));
    if (shared_kv) check(check_shared_kv(r, head_dim, head_dim_v));
    return bytes_per_token(r, q_heads, kv_heads, head_dim, head_dim_v, page_size, shared_kv);
  });
}

}  // namespace mpfa::python
