// What views over host pages and over device pages share.
#pragma once

#include <string>

#include "extension/page_set.hpp"
#include "mpfa/cache_view.hpp"
#include "mpfa/recipe.hpp"

namespace mpfa::python {

/// Fails unless both are linear and have the same pages, page size and heads. `call` is for the message.
void check_view_pages(const char* call, const PagesKind& k, const PagesKind& v);

/// The operands as they are stored, q in 16 bits or its own float32, and probabilities rounded as `p` says.
[[nodiscard]] std::string stored_recipe(DType q, const PagesKind& k, const PagesKind& v, const char* p);

/// The view of k and v without page table, lengths and sequences. Formats whose bytes are those of the recipe get its
/// rule for the scales.
[[nodiscard]] CacheView view_of(const Pages& k, const Pages& v, const Recipe& recipe, std::int64_t q_heads);

}  // namespace mpfa::python
