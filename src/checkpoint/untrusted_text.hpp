#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

/// Text and JSON out of files that nobody vouches for.
namespace kolo::checkpoints {

/// Makes text with names out of such a file safe for terminals and logs: bytes that are not UTF-8,
/// and control characters other than line ends, are written like \x1b.
std::string printable(std::string_view text);

bool is_utf8(std::string_view text);

/// Throws InvalidArgument for duplicate keys, which nlohmann::json itself accepts, and for values
/// that are nested too deeply: it recurses once per level when it copies or prints a value. Throws
/// the library's own exceptions for text that is not JSON.
nlohmann::json parse_json(std::string_view text);

// Counts, to which nlohmann::json itself converts fractions, negative numbers and booleans. They
// throw InvalidArgument for anything else.
std::uint64_t to_unsigned(const nlohmann::json& value);
std::int64_t to_count(const nlohmann::json& value);
std::vector<std::int64_t> to_counts(const nlohmann::json& values);

}  // namespace kolo::checkpoints
