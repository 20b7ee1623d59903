#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/error.hpp"

/// Parses untrusted JSON. nlohmann::json itself accepts duplicate keys, recurses once per level of
/// nesting when it copies or prints a value, and converts fractions, negative numbers and booleans
/// to counts.
namespace kolo::train {

/// Throws InvalidArgument for duplicate keys and for values that are nested too deeply, and the
/// library's own exceptions for text that is not JSON.
inline nlohmann::json parse_json(std::string_view text) {
  constexpr int kMaxDepth = 100;
  std::vector<std::set<std::string>> keys;  // of the enclosing objects
  using Event = nlohmann::json::parse_event_t;
  return nlohmann::json::parse(text, [&](int depth, Event event, nlohmann::json& value) {
    if (depth > kMaxDepth) {
      throw InvalidArgument("values are nested more than " + std::to_string(kMaxDepth) +
                            " levels deep");
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      throw InvalidArgument("'" + value.get<std::string>() + "' appears twice");
    }
    return true;
  });
}

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

}  // namespace kolo::train
