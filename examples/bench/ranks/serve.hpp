#pragma once

#include <functional>
#include <string>

#include "bench/ranks/worker.hpp"

namespace bench {

/// The path of the socket on which this rank receives commands; empty without a controller.
std::string controller_socket();

/// Runs a rank under a controller: initializes MPI with `thread_level`, makes the worker, and
/// executes commands. It sleeps between commands, and reports errors to the controller. Returns the
/// process's exit status.
int serve(int thread_level, const std::function<Worker()>& make);

}  // namespace bench
