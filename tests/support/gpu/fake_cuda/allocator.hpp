#pragma once

#include <c10/core/Allocator.h>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// Like CUDA's caching allocator: memory belongs to the stream that is current when it is
/// allocated, and freeing it is ordered by that stream alone. Memory is never used again while the
/// hub exists: an access that comes too late is a hazard and damages nothing.
c10::Allocator& fake_cuda_allocator();

/// Freeing `memory` is ordered by `stream` too. Does nothing unless the allocator made it.
void keep_for_stream(const c10::DataPtr& memory, comm::DeviceStream stream);

}  // namespace kolo::test
