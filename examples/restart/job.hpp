#pragma once

#include <optional>
#include <string>
#include <vector>

#include "restart/cause.hpp"
#include "restart/children.hpp"

namespace restart {

/// How a job has ended.
struct JobEnd {
  int code = 0;                ///< exit status; 128 and the signal's number where one ended mpirun
  int signal = 0;              ///< that has ended mpirun itself; 0: none
  bool was_killed = false;     ///< here, since mpirun did not end when it should have
  std::optional<Cause> cause;  ///< as mpirun gives it
};

/// Runs mpirun, passes signals and its standard error on, and leaves none of its processes behind.
/// Throws examples::CannotStart.
/// @param grace for processes that are to end, before they are killed: after a signal, and after
///   mpirun has given the job up, when it may wait for a host that is gone
JobEnd run_job(Children& children, const std::vector<std::string>& command, milliseconds grace);

/// Writes a line of this program's own to standard error.
void say(const std::string& text);

}  // namespace restart
