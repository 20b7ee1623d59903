#pragma once

#include <string>
#include <vector>

namespace kolo {

/// One text per environment variable that is not a setting but differs from the name of one by at
/// most two letters.
std::vector<std::string> misspelt_settings();

}  // namespace kolo
