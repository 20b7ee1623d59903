#pragma once

#include <span>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// The codec operations of comm::Gpu, on plain memory, done by the CPU's codecs.

void encode_run(const comm::DeviceCodec& codec, const comm::CodedRun& run, DType from);
void decode_run(const comm::DeviceCodec& codec, const comm::CodedRun& run, DType to, double factor);
void add_coded_inputs(const base::CodecFormat& format, const comm::CodedInputs& inputs, float* sum);

}  // namespace kolo::test
