#pragma once

#include <sys/types.h>
#include <vector>

namespace restart {

/// The processes below this one that run, at whatever distance.
std::vector<pid_t> find_descendants();

}  // namespace restart
