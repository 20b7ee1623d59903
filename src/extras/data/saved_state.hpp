#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "kolo/error.hpp"

/// Reads the states that samplers and Accelerators have saved as JSON. The text may come from any
/// file: nlohmann::json itself recurses once per level of nesting when it copies or prints a value,
/// and converts fractions, negative numbers and booleans to counts.
namespace kolo::extras {

/// Text out of a file, safe for terminals and logs: control characters and all that is not ASCII
/// are written like \u001b.
inline std::string escaped(std::string_view text) {
  const std::string quoted = nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true,
                                                       nlohmann::json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

inline std::uint64_t to_count(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) {
    throw InvalidArgument("a count is expected, not " +
                          (value.is_structured() ? std::string(value.type_name())
                                                 : value.dump(-1, ' ', true).substr(0, 40)));
  }
  return value.get<std::uint64_t>();
}

/// An epoch number, which is not the largest possible one.
inline std::int64_t to_epoch(const nlohmann::json& value) {
  const std::uint64_t epoch = to_count(value);
  if (epoch >= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw InvalidArgument("no epoch follows number " + std::to_string(epoch));
  }
  return static_cast<std::int64_t>(epoch);
}

}  // namespace kolo::extras
