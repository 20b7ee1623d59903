#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace compression {

/// A table of the results, from compare_compression's JSON.
std::string to_table(const nlohmann::ordered_json& results);

/// An SVG chart with a bar per case for each quantity.
std::string to_svg(const nlohmann::ordered_json& results);

}  // namespace compression
