#include "common/threads.hpp"

#include <algorithm>
#include <cstdlib>

#include <ATen/Parallel.h>

namespace examples {

void share_cores(int local_size) {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    at::set_num_threads(std::max(1, at::get_num_threads() / local_size));
  }
}

}  // namespace examples
