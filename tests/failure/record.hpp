#pragma once

#include <string>

namespace kolo::test {

/// Continues in a child process, whose stderr is written to <folder>/<rank>.err. This process waits
/// for the child's end, writes how and when it ended to <folder>/<rank>.status, and ends in the
/// same way. mpirun does not report how each rank ended, and if it tolerates failures it exits with
/// 0.
void record_in(const std::string& folder, int rank);

/// Writes the time to <folder>/<name>, on the clock that all processes of the machine share.
void stamp(const std::string& folder, const std::string& name, const std::string& text = {});

}  // namespace kolo::test
