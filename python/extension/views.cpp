#include "extension/views.hpp"

#include <algorithm>

namespace mpfa::python {

void check_view_pages(const char* call, const PagesKind& k, const PagesKind& v) {
  for (const PagesKind* kind : {&k, &v}) {
    if (kind->layout == PagesLayout::linear) continue;
    fail("{}: {} is '{}'; only linear pages are read in place: copy_pages to linear ones", call, kind == &k ? "k" : "v",
         pages_tag(*kind));
  }
  if (k.num_pages == v.num_pages && k.page_size == v.page_size && k.kv_heads == v.kv_heads) return;
  fail("{}: k has {} pages of '{}', v {} of '{}'; pages, page_size and kv_heads must be equal", call, k.num_pages,
       pages_tag(k), v.num_pages, pages_tag(v));
}

std::string stored_recipe(DType q, const PagesKind& k, const PagesKind& v, const char* p) {
  const char* const element = q == DType::f32 ? "f32" : q == DType::bf16 ? "bf16" : "fp16";
  return fmt::format("q={},k={},v={},p={}", element, format_name(k.format), format_name(v.format), p);
}

CacheView view_of(const Pages& k, const Pages& v, const Recipe& recipe, std::int64_t q_heads) {
  CacheView view;
  view.k_format = same_bytes(k.kind.format, recipe.k) ? recipe.k : k.kind.format;
  view.v_format = same_bytes(v.kind.format, recipe.v) ? recipe.v : v.kind.format;
  view.num_pages = k.kind.num_pages;
  view.page_size = k.kind.page_size;
  view.kv_heads = k.kind.kv_heads;
  view.head_dim = k.kind.head_dim;
  view.head_dim_v = v.kind.head_dim;
  view.k = k.bytes;
  view.v = v.bytes;
  view.group = std::max<std::int64_t>(q_heads / view.kv_heads, 1);
  return view;
}

}  // namespace mpfa::python
