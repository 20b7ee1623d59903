// Plain MPI, for kolo-bench --baseline mpi, which starts this program and tells it what to do. Nothing
// of Kolo runs in it.
#include <cstdio>

#include <mpi.h>

#include "bench/mpi_contestants.hpp"
#include "bench/serve.hpp"

int main() {
  if (bench::leading_socket().empty()) {
    std::fputs("kolo-bench-mpi is started by kolo-bench --baseline mpi\n", stderr);
    return 2;
  }
  bench::MpiContestants contestants;
  return bench::serve(MPI_THREAD_SINGLE, [&contestants] {
    return [&contestants](const bench::Workload& workload) { return contestants.make(workload); };
  });
}
