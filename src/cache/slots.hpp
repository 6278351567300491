// What a call that writes by slot checks and turns, whether the pages are of a pool or of the caller.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/sequence.hpp"

namespace mpfa {

/// ok when every slot is -1 or one of `num_pages` pages of page_size tokens, and none is given twice.
[[nodiscard]] Status check_slots(const char* call, std::int64_t num_pages, std::int64_t page_size,
                                 std::span<const std::int64_t> slots);
/// ok without tokens.rope, or when it can turn every token that has a slot, and its queries.
[[nodiscard]] Status check_slot_rope(const char* call, const CacheConfig& config, const NewTokens& tokens,
                                     std::span<const std::int64_t> slots);
/// What rotate_queries takes: -1 for the queries of skipped tokens. Empty without queries.
[[nodiscard]] std::vector<std::int64_t> query_positions(const NewTokens& tokens, std::span<const std::int64_t> slots);

}  // namespace mpfa
