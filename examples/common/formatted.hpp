#pragma once

#include <cstdio>
#include <string>

namespace examples {

/// As printf writes it; a line at most.
template <class... Values>
std::string formatted(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

}  // namespace examples
