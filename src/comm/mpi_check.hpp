#pragma once

#include <mpi.h>

namespace kolo::comm {

/// Throws BackendError with the call, its code and MPI's own text for it.
[[noreturn]] void throw_mpi_error(int code, const char* call);

}  // namespace kolo::comm

/// Calls an MPI function; throws BackendError if it fails.
#define KOLO_MPI_TRY(call)                                                                 \
  do {                                                                                     \
    const int kolo_mpi_code = (call);                                                      \
    if (kolo_mpi_code != MPI_SUCCESS) ::kolo::comm::throw_mpi_error(kolo_mpi_code, #call); \
  } while (false)
