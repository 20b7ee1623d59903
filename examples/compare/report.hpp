#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

/// What compare_sharding makes of its measurements.
namespace compare {

/// The peak memory of the rank that needed most.
struct MemoryUse {
  std::int64_t parameters = 0;    ///< of the model, all of them
  double construction_bytes = 0;  ///< until the optimizer is wrapped
  double step_bytes = 0;          ///< in the first steps

  double peak_bytes() const { return std::max(construction_bytes, step_bytes); }
};

struct Largest {
  int blocks = 0;  ///< 0: not even one fits
  MemoryUse use{};
};

/// The largest number of blocks for which `measure` needs at most `budget` bytes. Memory must grow
/// with the number of blocks. Searches where a line through the last two measurements meets the
/// budget.
Largest find_largest(const std::function<MemoryUse(int blocks)>& measure, std::size_t budget);

/// A table of a model's modes, from compare_sharding's JSON. Tells whether the mode that shards
/// most achieves what articles about sharding claim: 55 % less memory, no slower steps, models 1.7
/// times as large.
std::string to_table(const nlohmann::ordered_json& model);

/// An SVG chart of all models, with a bar per mode for each quantity.
std::string to_svg(const nlohmann::ordered_json& models);

}  // namespace compare
