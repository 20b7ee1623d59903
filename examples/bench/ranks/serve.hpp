#pragma once

#include <functional>
#include <string>

#include "bench/ranks/worker.hpp"

namespace bench {

/// The path of the socket over which this rank is told what to do; empty without a controller.
std::string controller_socket();

/// A rank's whole life under a controller: starts MPI with `thread_level`, makes its worker, and
/// measures what it is told. It sleeps between orders, and reports errors to the controller.
/// Returns the process's exit status.
int serve(int thread_level, const std::function<Worker()>& make);

}  // namespace bench
