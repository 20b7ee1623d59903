#pragma once

#include <sstream>
#include <string>

namespace kolo {

/// Formats `value` with enough digits that different values have different texts.
inline std::string exact_text(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

}  // namespace kolo
