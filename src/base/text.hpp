#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <vector>

namespace kolo {

/// Formats `value` with the fewest digits that no other value has.
inline std::string exact_text(double value) {
  std::array<char, 32> digits;
  return {digits.begin(), std::to_chars(digits.begin(), digits.end(), value).ptr};
}

/// "1, 0.5"
inline std::string exact_text(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text.append(text.empty() ? "" : ", ").append(exact_text(value));
  return text;
}

/// Formats a shape and the like: "[3, 4]".
template <class Numbers>
std::string list_of(const Numbers& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(numbers[i]);
  }
  text += "]";
  return text;
}

/// Names ranks in an error text: "rank 3", "ranks 0 and 2", "ranks 0, 2 and 5".
inline std::string list_ranks(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

/// Lists ranks of a process set by their world ranks, which `members` has.
inline std::string list_world_ranks(std::vector<int> ranks, std::span<const int> members) {
  for (int& rank : ranks) rank = members[static_cast<std::size_t>(rank)];
  return list_ranks(ranks);
}

/// The text of the exception that is being handled, without the stack trace that LibTorch's have.
/// Programs may throw anything.
inline std::string text_of_current_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find("\nException raised from "));
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace kolo
