#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace kolo::test {

/// Calls the CPU kernel of `op` for CUDA tensors, on the same memory. It has completed on return.
/// In the happens-before graph it is a kernel on the calling thread's current stream, and the host
/// is ordered after it only if the CUDA kernel would block the host.
void call_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

}  // namespace kolo::test
