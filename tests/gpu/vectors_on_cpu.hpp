#pragma once

#include "gpu/vector_cases.hpp"

namespace kolo::test {

/// One thread of the kernels after another, as a GPU with so many blocks would do it.
class VectorsOnCpu final : public VectorOperations {
 public:
  explicit VectorsOnCpu(std::uint64_t blocks) : blocks_(blocks) {}

  void add_up(const comm::DeviceVectors& vectors, comm::DeviceWeights weights,
              std::byte* to) override;
  void multiply_all(const comm::DeviceVectors& vectors, std::span<double> products) override;

 private:
  std::uint64_t blocks_;
};

}  // namespace kolo::test
