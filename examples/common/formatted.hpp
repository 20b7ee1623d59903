#pragma once

#include <cstdio>
#include <string>

namespace examples {

/// Formats like printf; at most 255 characters.
template <class... Values>
std::string formatted(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

}  // namespace examples
