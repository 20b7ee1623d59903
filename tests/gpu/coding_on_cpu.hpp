#pragma once

#include "gpu/coding_cases.hpp"

namespace kolo::test {

/// Runs the kernels on the CPU. Between two barriers one GPU thread runs after another, in
/// ascending or descending order: a result that depends on the order would be a race on a GPU.
class CodingOnCpu final : public CodingOperations {
 public:
  explicit CodingOnCpu(bool is_backwards) : is_backwards_(is_backwards) {}

  void encode(const comm::DeviceCodec& codec, std::span<const comm::CodedRun> runs,
              DType from) override;
  void decode(const comm::DeviceCodec& codec, std::span<const comm::CodedRun> runs, DType to,
              double factor) override;
  void add_coded(const base::CodecFormat& format, const comm::CodedInputs& inputs,
                 float* sum) override;

 private:
  bool is_backwards_;
};

}  // namespace kolo::test
