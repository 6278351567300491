#include "matrix/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace mpfa::cli {

namespace {

constexpr std::int64_t kLargest = 1100;  // numbers are tried up to here

}  // namespace

/// Numbers for which `takes` holds: "1 to 512", "multiples of 16".
std::string range_text(const std::function<bool(std::int64_t)>& takes) {
  std::vector<std::int64_t> taken;
  for (std::int64_t n = 1; n <= kLargest; ++n) {
    if (takes(n)) taken.push_back(n);
  }
  if (taken.empty()) return "none";
  const std::int64_t first = taken.front(), last = taken.back();
  const std::string end = last > kLargest - first ? "" : fmt::format(" to {}", last);
  const bool multiples = std::all_of(taken.begin(), taken.end(), [first](std::int64_t n) { return n % first == 0; }) &&
                         static_cast<std::int64_t>(taken.size()) == last / first;
  if (multiples && first == 1) return end.empty() ? "any" : "1" + end;
  if (multiples) return fmt::format("multiples of {}{}", first, end);
  const std::int64_t step = taken.size() > 1 ? taken[1] - first : 1;
  const bool even = first % step == 0 && (last - first) / step + 1 == std::ssize(taken) && (last - first) % step == 0;
  if (even && taken.size() > 4) return fmt::format("multiples of {} from {} to {}", step, first, last);
  return fmt::format("{}", fmt::join(taken, ", "));
}

std::string row_text(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

}  // namespace mpfa::cli
