#pragma once

#include <string>

namespace bench {

/// Every setting of Kolo's with its value and where that comes from, for people. Throws
/// kolo::InvalidArgument where the environment has a malformed one.
std::string config_table();

}  // namespace bench
