#pragma once

#include <optional>
#include <string>
#include <vector>

#include "restart/cause.hpp"
#include "restart/children.hpp"

namespace restart {

/// How a job has ended.
struct JobEnd {
  int code = 0;                ///< exit status; 128 + signal number if one ended mpirun
  int signal = 0;              ///< that ended mpirun itself; 0: none
  bool was_killed = false;     ///< by us, since mpirun did not end in time
  std::optional<Cause> cause;  ///< as mpirun reports it
};

/// Runs mpirun, forwards signals and its standard error, and leaves none of its processes behind.
/// Throws examples::CannotStart.
/// @param grace how long processes may take to end before they are killed: after a signal, and
///   after mpirun has given up the job, when it may wait for a lost host
JobEnd run_job(Children& children, const std::vector<std::string>& command, milliseconds grace);

/// Writes a line of this program's own to standard error.
void say(const std::string& text);

}  // namespace restart
