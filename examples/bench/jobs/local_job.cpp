#include "bench/jobs/local_job.hpp"

#include <mpi.h>

namespace bench {

Block LocalJob::run(std::size_t case_index, int iterations) {
  Block block = worker_.run(case_index, iterations);
  MPI_Allreduce(MPI_IN_PLACE, block.calls_us.data(), static_cast<int>(block.calls_us.size()),
                MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &block.mean_us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &block.host_us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &block.cpu_s, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return block;
}

std::uint64_t LocalJob::count_wrong(std::size_t case_index) {
  std::uint64_t wrong = worker_.count_wrong(case_index);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  return wrong;
}

}  // namespace bench
