#pragma once

#include <span>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// What comm::Gpu does with codecs, on plain memory, by the codecs of the CPU.

void encode_run(const comm::DeviceCodec& codec, const comm::CodedRun& run, DType from);
void decode_run(const comm::DeviceCodec& codec, const comm::CodedRun& run, DType to, double factor);
void add_coded_inputs(const base::CodecFormat& format, const comm::CodedInputs& inputs, float* sum);

}  // namespace kolo::test
