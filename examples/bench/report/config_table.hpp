#pragma once

#include <string>

namespace bench {

/// All of Kolo's settings as text for people: their values and where these come from. Throws
/// kolo::InvalidArgument if the environment has a malformed one.
std::string config_table();

}  // namespace bench
