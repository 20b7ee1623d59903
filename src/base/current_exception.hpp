#pragma once

#include <exception>
#include <string>

namespace kolo {

/// The text of the exception that is being handled. Programs may throw anything.
inline std::string text_of_current_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace kolo
