#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace kolo::test {

/// Calls `op` with CUDA tensors by its CPU kernel, on the same memory. On the graph it is a kernel
/// on the calling thread's current stream, which the host knows nothing of unless CUDA's would make
/// it wait; in truth it is over on return.
void call_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

}  // namespace kolo::test
