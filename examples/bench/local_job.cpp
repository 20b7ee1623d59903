#include "bench/local_job.hpp"

#include <mpi.h>

namespace bench {

Block LocalJob::run(std::size_t contestant, int iterations) {
  Block block = station_.run(contestant, iterations);
  MPI_Allreduce(MPI_IN_PLACE, block.calls_us.data(), static_cast<int>(block.calls_us.size()),
                MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &block.mean_us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &block.host_us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &block.cpu_s, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return block;
}

std::uint64_t LocalJob::count_wrong(std::size_t contestant) {
  std::uint64_t wrong = station_.count_wrong(contestant);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  return wrong;
}

}  // namespace bench
