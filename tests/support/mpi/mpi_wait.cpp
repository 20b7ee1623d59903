#include "support/mpi/mpi_wait.hpp"

#include <chrono>
#include <thread>

#include "kolo/mpi.hpp"

namespace kolo::test {

void mpi_wait(const std::function<void(MPI_Request*)>& start) {
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const MpiLock lock;
    start(&request);
  }
  for (int is_done = 0; is_done == 0;) {
    {
      const MpiLock lock;
      MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    }
    if (is_done == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace kolo::test
