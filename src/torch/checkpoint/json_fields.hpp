#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/error.hpp"

/// Numbers out of JSON that anybody may have written: the library's own conversions take fractions,
/// negative numbers and truth values for counts.
namespace kolo::tensors {

inline std::uint64_t to_unsigned(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) {
    throw InvalidArgument("a count is expected, not " + value.dump(-1, ' ', true).substr(0, 40));
  }
  return value.get<std::uint64_t>();
}

inline std::int64_t to_count(const nlohmann::json& value) {
  const std::uint64_t count = to_unsigned(value);
  if (count > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw InvalidArgument("a count of " + std::to_string(count) + " is too large");
  }
  return static_cast<std::int64_t>(count);
}

inline std::vector<std::int64_t> to_counts(const nlohmann::json& values) {
  if (!values.is_array()) throw InvalidArgument("a list of counts is expected");
  std::vector<std::int64_t> counts;
  for (const nlohmann::json& value : values) counts.push_back(to_count(value));
  return counts;
}

}  // namespace kolo::tensors
