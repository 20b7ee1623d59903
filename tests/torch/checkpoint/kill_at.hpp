#pragma once

#include <string>

namespace kolo::test {

/// From now on, counts this process's calls that change or open what is below `folder`, and ends it
/// with SIGKILL at the one numbered `moment`, from 0: right before the call. Writes count twice,
/// the second time after half of their bytes. Prints each call to stderr. For calls of all
/// libraries: the library with this function stands before them in the order in which the system
/// looks for names.
void kill_at(const std::string& folder, long moment);

}  // namespace kolo::test
