// What every command hands back: text for the terminal, as a table or as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mpfa::cli {

using Json = nlohmann::ordered_json;

/// Columns padded to their widest cell, two spaces apart; the first row is the head.
[[nodiscard]] std::string table_text(const std::vector<std::vector<std::string>>& rows);
/// Indented JSON with a final newline; text that is not UTF-8 gets replacement characters.
[[nodiscard]] std::string json_text(const Json& json);

}  // namespace mpfa::cli
