#pragma once

#include <span>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// The codec operations of comm::Gpu under test, from and to host memory.
class CodingOperations {
 public:
  virtual ~CodingOperations() = default;

  virtual void encode(const comm::DeviceCodec& codec, std::span<const comm::CodedRun> runs,
                      DType from) = 0;
  virtual void decode(const comm::DeviceCodec& codec, std::span<const comm::CodedRun> runs,
                      DType to, double factor) = 0;
  virtual void add_coded(const base::CodecFormat& format, const comm::CodedInputs& inputs,
                         float* sum) = 0;
};

}  // namespace kolo::test

namespace kolo::test::coding {

// Each function tests every codec, with lengths that fill blocks and tiles partially, and with
// zeros of both signs, equal magnitudes, the smallest and largest numbers, NaN and infinities. They
// expect the bits of the CPU's codecs, and no change around the results.

/// From all dtypes, with one term and several, with and without residuals.
void expect_encoded_as_on_the_cpu(CodingOperations& operations);
/// To all dtypes.
void expect_decoded_as_on_the_cpu(CodingOperations& operations);
/// Payloads of several ranks, each of which may be this one; with and without residuals.
void expect_payloads_added_as_on_the_cpu(CodingOperations& operations);
/// As many runs as fit into one launch, and more.
void expect_many_runs_encoded(CodingOperations& operations);

}  // namespace kolo::test::coding
