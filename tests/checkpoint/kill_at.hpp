#pragma once

#include <string>

namespace kolo::test {

/// From now on, counts this process's calls that change or open files below `folder`, and kills the
/// process with SIGKILL right before call number `moment`, counted from 0. A write counts twice,
/// the second time after half of its bytes. Prints each call to stderr. Counts the calls of all
/// libraries, since the dynamic linker finds the functions of this one first.
void kill_at(const std::string& folder, long moment);

}  // namespace kolo::test
