#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace compression {

/// The table of the results, as compare_compression's JSON has them.
std::string to_table(const nlohmann::ordered_json& results);

/// For each quantity a bar for every case. An SVG document.
std::string to_svg(const nlohmann::ordered_json& results);

}  // namespace compression
