#include "comm/mpi_environment.hpp"
#include "kolo/mpi.hpp"

namespace kolo {

MpiLock::MpiLock() : calls_(comm::mpi_environment::lock_calls()) {}

}  // namespace kolo
