#include "gpu/vectors_on_cpu.hpp"
#include "ops/kernels/device_vectors.cuh"

namespace kolo::test {

void VectorsOnCpu::add_up(const comm::DeviceVectors& vectors, comm::DeviceFactors factors,
                          std::byte* to) {
  ops::visit_vectors(vectors, [&]<class T>(const ops::VectorsOf<T>& typed) {
    for (std::uint64_t block = 0; block < blocks_; ++block) {
      for (std::uint32_t thread = 0; thread < ops::kVectorThreads; ++thread) {
        ops::add_up_block(typed, factors, reinterpret_cast<T*>(to), blocks_, block, thread);
      }
    }
  });
}

}  // namespace kolo::test
