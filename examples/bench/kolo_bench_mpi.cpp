// Plain MPI, for kolo-bench --baseline mpi, which starts this program and tells it what to do.
// Nothing of Kolo runs in it.
#include <cstdio>
#include <memory>

#include <mpi.h>

#include "bench/cases/mpi_cases.hpp"
#include "bench/ranks/host_timer.hpp"
#include "bench/ranks/serve.hpp"

int main() {
  if (bench::controller_socket().empty()) {
    std::fputs("kolo-bench-mpi is started by kolo-bench --baseline mpi\n", stderr);
    return 2;
  }
  bench::MpiCases cases;
  return bench::serve(MPI_THREAD_SINGLE, [&cases] {
    return bench::Worker([&cases](const bench::Workload& workload) { return cases.make(workload); },
                         std::make_unique<bench::HostTimer>());
  });
}
