#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

namespace kolo::test {

/// Includes arguments that the operator writes although its schema does not say so.
bool is_written(const c10::FunctionSchema& schema, const c10::Argument& argument);
/// Whether it takes CPU tensors with dimensions besides those on the GPU.
bool takes_cpu_tensors(const c10::FunctionSchema& schema);
/// Whether it blocks the host on CUDA because the host needs a value, or a data-dependent size.
bool blocks_host(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments);

}  // namespace kolo::test
