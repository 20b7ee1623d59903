#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

namespace kolo::test {

/// Counts arguments that it writes although its schema does not say so.
bool is_written(const c10::FunctionSchema& schema, const c10::Argument& argument);
/// Takes CPU tensors with dimensions beside those on the GPU.
bool takes_cpu_tensors(const c10::FunctionSchema& schema);
/// Makes the host wait on CUDA: the host needs a value, or a size that depends on values.
bool makes_the_host_wait(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments);

}  // namespace kolo::test
