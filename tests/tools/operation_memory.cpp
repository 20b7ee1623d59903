// Checks that resident memory does not grow over many unnamed all-reduces:
//
//   mpirun -np 2 operation_memory [operations]     by default 1,000,000
//
// Prints every rank's after every tenth. Exit code 1 where the second half added more than a byte
// for every ten operations on any rank: pages are touched for the first time in the first half.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace {

std::int64_t resident_bytes() {
  long total = 0;
  long resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld", &total, &resident) != 2) std::abort();
  std::fclose(file);
  return static_cast<std::int64_t>(resident) * sysconf(_SC_PAGESIZE);
}

void reduce_once() {
  float value = 1.0F;
  const kolo::TensorView view{&value, kolo::DType::Float32, {1}, {}};
  kolo::allreduce(view, view);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t operations = argc > 1 ? std::atoll(argv[1]) : 1'000'000;
  kolo::init();
  std::int64_t at_half = 0;
  for (int tenth = 1; tenth <= 10; ++tenth) {
    for (std::int64_t i = 0; i < operations / 10; ++i) reduce_once();
    const std::int64_t bytes = resident_bytes();
    if (tenth == 5) at_half = bytes;
    std::printf("%10lld operations: %8.1f KiB on rank %d\n",
                static_cast<long long>(operations / 10 * tenth),
                static_cast<double>(bytes) / 1024.0, kolo::rank());
  }
  const bool is_flat = resident_bytes() - at_half <= operations / 20;
  const auto metrics = kolo::Runtime::current().world().metrics();
  std::printf("rank %d: %llu exchanges, %llu negotiations; memory is %s\n", kolo::rank(),
              static_cast<unsigned long long>(metrics.exchanges),
              static_cast<unsigned long long>(metrics.negotiations), is_flat ? "flat" : "growing");
  kolo::shutdown();
  return is_flat ? 0 : 1;
}
