#include "checkpoint/untrusted_text.hpp"

#include <cstddef>
#include <limits>
#include <set>

#include "kolo/error.hpp"

namespace kolo::checkpoints {
namespace {

constexpr std::uint32_t kLastCodePoint = 0x10FFFF;

/// The first character of a text.
struct Character {
  std::size_t bytes = 0;  // 0: it is not UTF-8
  std::uint32_t code = 0;

  bool is_printable() const {
    const bool is_control = (code < 0x20 && code != '\n') || (code >= 0x7F && code < 0xA0);
    return bytes > 0 && !is_control;
  }
};

Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {1, first};
  const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 0;
  if (size == 0 || first > 0xF4 || size > text.size()) return {};
  std::uint32_t code = first & (0x7Fu >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr std::uint32_t kFirstOfSize[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  const bool is_valid = code >= kFirstOfSize[size] && code <= kLastCodePoint && !is_surrogate;
  return is_valid ? Character{size, code} : Character{};
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string result;
  while (!text.empty()) {
    const Character character = first_of(text);
    std::size_t size = character.bytes;
    if (!character.is_printable()) {
      const unsigned byte = static_cast<unsigned char>(text.front());
      result += {'\\', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 0xF]};
      size = 1;
    } else {
      result += text.substr(0, size);
    }
    text.remove_prefix(size);
  }
  return result;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = first_of(text).bytes;
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

nlohmann::json parse_json(std::string_view text) {
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

std::uint64_t to_unsigned(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) {
    throw InvalidArgument("a count is expected, not " + value.dump(-1, ' ', true).substr(0, 40));
  }
  return value.get<std::uint64_t>();
}

std::int64_t to_count(const nlohmann::json& value) {
  const std::uint64_t count = to_unsigned(value);
  if (count > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw InvalidArgument("a count of " + std::to_string(count) + " is too large");
  }
  return static_cast<std::int64_t>(count);
}

std::vector<std::int64_t> to_counts(const nlohmann::json& values) {
  if (!values.is_array()) throw InvalidArgument("a list of counts is expected");
  std::vector<std::int64_t> counts;
  for (const nlohmann::json& value : values) counts.push_back(to_count(value));
  return counts;
}

}  // namespace kolo::checkpoints
