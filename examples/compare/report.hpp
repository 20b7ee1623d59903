#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace compare {

/// A table of a model's modes, from compare_sharding's JSON. Tells whether the mode that shards
/// most achieves what articles about sharding claim: 55 % less memory, no slower steps, models 1.7
/// times as large.
std::string to_table(const nlohmann::ordered_json& model);

/// An SVG chart of all models, with a bar per mode for each quantity.
std::string to_svg(const nlohmann::ordered_json& models);

}  // namespace compare
