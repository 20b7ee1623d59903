#pragma once

#include <sstream>
#include <string>

namespace kolo {

/// A number with so many digits that another number has another text.
inline std::string exact_text(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

}  // namespace kolo
