// Plain MPI, for kolo-bench --baseline mpi, which starts this program and tells it what to do.
// Nothing of Kolo runs in it.
#include <cstdio>
#include <memory>

#include <mpi.h>

#include "bench/host_referee.hpp"
#include "bench/mpi_contestants.hpp"
#include "bench/serve.hpp"

int main() {
  if (bench::leading_socket().empty()) {
    std::fputs("kolo-bench-mpi is started by kolo-bench --baseline mpi\n", stderr);
    return 2;
  }
  bench::MpiContestants contestants;
  return bench::serve(MPI_THREAD_SINGLE, [&contestants] {
    return bench::Station(
        [&contestants](const bench::Workload& workload) { return contestants.make(workload); },
        std::make_unique<bench::HostReferee>());
  });
}
