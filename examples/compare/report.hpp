#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace compare {

/// The table of a model's modes, as compare_sharding's JSON has them, and whether the mode that
/// shards most keeps what articles about sharding claim: 55 % less memory, no slower steps, models
/// 1.7 times as large.
std::string to_table(const nlohmann::ordered_json& model);

/// All models: for each quantity a bar for every mode. An SVG document.
std::string to_svg(const nlohmann::ordered_json& models);

}  // namespace compare
