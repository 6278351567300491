// For error messages: the nearest allowed word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mpfa {

/// " (did you mean 'x'?)" when a word of `allowed` is near `word` in edit distance, else empty.
[[nodiscard]] std::string suggestion(std::string_view word, const std::vector<std::string>& allowed);

}  // namespace mpfa
