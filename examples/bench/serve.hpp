#pragma once

#include <functional>
#include <string>

#include "bench/station.hpp"

namespace bench {

/// The path of the socket over which this rank is told what to do; empty where nobody leads it.
std::string leading_socket();

/// A rank's whole life under one who leads: starts MPI with `thread_level`, makes its
/// station, measures what it is told. Between orders it sleeps. An error goes to the one who leads.
/// Returns the process's exit status.
int serve(int thread_level, const std::function<Station()>& make);

}  // namespace bench
