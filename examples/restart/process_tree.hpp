#pragma once

#include <sys/types.h>
#include <vector>

namespace restart {

/// The running descendants of this process.
std::vector<pid_t> find_descendants();

}  // namespace restart
