// Pieces of the printed support matrix.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mpfa::cli {

/// Numbers (head dims, page sizes) for which `takes` holds: "1 to 512", "multiples of 16", "64, 128".
[[nodiscard]] std::string range_text(const std::function<bool(std::int64_t)>& takes);

/// A row of a table in Markdown.
[[nodiscard]] std::string row_text(const std::vector<std::string>& cells);

}  // namespace mpfa::cli
