// Text from outside, made safe for a message.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace mpfa {

/// 'text' in quotes: bytes outside printable ASCII as \xNN, cut after `shown` bytes.
[[nodiscard]] inline std::string printable(std::string_view text, std::size_t shown = 40) {
  std::string out = "'";
  for (const char c : text.substr(0, shown)) {
    if (c >= 0x20 && c < 0x7F) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out + (text.size() > shown ? "...'" : "'");
}

}  // namespace mpfa
