#pragma once

#include <string>

namespace kolo::test {

/// Goes on in a child process, whose stderr goes to <folder>/<rank>.err; this process waits for its
/// end, writes how and when that was to <folder>/<rank>.status, and ends in the same way. mpirun
/// tells nobody how each rank ended, and where it tolerates failures it ends well itself.
void record_in(const std::string& folder, int rank);

/// Writes the time to <folder>/<name>, on the clock that all processes of the machine share.
void stamp(const std::string& folder, const std::string& name, const std::string& text = {});

}  // namespace kolo::test
