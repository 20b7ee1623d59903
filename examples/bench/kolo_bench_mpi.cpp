// The plain MPI baseline: kolo-bench --baseline mpi starts this program and sends it commands. It
// does not use Kolo.
#include <cstdio>
#include <memory>

#include <mpi.h>

#include "bench/mpi_cases.hpp"
#include "bench/rank.hpp"
#include "common/freed_memory.hpp"

int main() {
  if (bench::controller_socket().empty()) {
    std::fputs("kolo-bench-mpi is started by kolo-bench --baseline mpi\n", stderr);
    return 2;
  }
  examples::keep_freed_memory();
  bench::MpiCases cases;
  return bench::serve(MPI_THREAD_SINGLE, [&cases] {
    return bench::Worker([&cases](const bench::Workload& workload) { return cases.make(workload); },
                         std::make_unique<bench::HostTimer>());
  });
}
