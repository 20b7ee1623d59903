#pragma once

#include "gpu/vector_cases.hpp"

namespace kolo::test {

/// Runs the kernels on the CPU, one GPU thread after another, like a GPU with this many blocks.
class VectorsOnCpu final : public VectorOperations {
 public:
  explicit VectorsOnCpu(std::uint64_t blocks) : blocks_(blocks) {}

  void add_up(const comm::DeviceVectors& vectors, comm::DeviceFactors factors,
              std::byte* to) override;

 private:
  std::uint64_t blocks_;
};

}  // namespace kolo::test
