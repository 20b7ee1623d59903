#include "bench/gpu.hpp"
#include "kolo/error.hpp"

namespace bench {

std::unique_ptr<Gpu> open_gpu(int) {
  throw kolo::InvalidArgument(
      "--device cuda: this kolo-bench was built without CUDA. Build it where CMake finds CUDA "
      "Toolkit "
      "and NCCL; -DKOLO_WITH_CUDA=ON says what is missing.");
}

}  // namespace bench
