// `mpfa formats` and `mpfa recipes`: what the library offers, as tables or JSON.
#pragma once

#include <string>

namespace mpfa::cli {

[[nodiscard]] std::string formats_report(bool json);
[[nodiscard]] std::string recipes_report(bool json);

}  // namespace mpfa::cli
