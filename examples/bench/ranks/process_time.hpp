#pragma once

#include <ctime>

namespace bench {

/// CPU seconds of all threads of this process.
inline double process_cpu_s() {
  std::timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace bench
