#pragma once

#include <functional>

#include <mpi.h>

namespace kolo::test {

/// Starts an MPI collective and waits for it, without blocking MPI for Kolo's threads.
void mpi_wait(const std::function<void(MPI_Request*)>& start);

}  // namespace kolo::test
