#include "recipes/suggest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace mpfa {
namespace {

// Longer words cannot be near a name, and the distance is quadratic.
constexpr std::size_t kLongestWord = 64;

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string suggestion(std::string_view word, const std::vector<std::string>& allowed) {
  if (word.empty() || word.size() > kLongestWord) return {};
  std::size_t best = (word.size() + 1) / 3 + 1;  // a third of the letters may be wrong
  const std::string* nearest = nullptr;
  for (const std::string& candidate : allowed) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best) {
      best = distance;
      nearest = &candidate;
    }
  }
  return nearest == nullptr ? std::string() : fmt::format(" (did you mean '{}'?)", *nearest);
}

}  // namespace mpfa
