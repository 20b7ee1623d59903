#pragma once

#include <functional>

#include <mpi.h>

namespace kolo::test {

/// Starts a collective of MPI and waits for it, without keeping Kolo's threads out of MPI.
void mpi_wait(const std::function<void(MPI_Request*)>& start);

}  // namespace kolo::test
