// `mpfa matrix`: what every device takes, asked of supports() cell by cell; docs/support.md is its output.
#pragma once

#include <string>

namespace mpfa::cli {

/// Markdown, or JSON with one entry for each cell.
[[nodiscard]] std::string matrix_report(bool json);

}  // namespace mpfa::cli
