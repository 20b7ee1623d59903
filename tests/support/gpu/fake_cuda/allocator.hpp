#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/DispatchKeySet.h>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// The dispatch keys of tensors on the fake GPUs.
inline const c10::DispatchKeySet kCudaKeys(c10::DispatchKey::CUDA);

/// Like CUDA's caching allocator: memory belongs to the stream that is current when it is
/// allocated, and freeing it is ordered by that stream alone. Memory is never reused while the hub
/// exists, so a late access is reported as a hazard but damages nothing.
c10::Allocator& fake_cuda_allocator();

/// Orders the freeing of `memory` by `stream` too. Ignores memory of other allocators.
void keep_for_stream(const c10::DataPtr& memory, comm::DeviceStream stream);

}  // namespace kolo::test
