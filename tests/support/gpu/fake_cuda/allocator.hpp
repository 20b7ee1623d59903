#pragma once

#include <c10/core/Allocator.h>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// As CUDA's caching allocator: memory belongs to the stream that is current when it is allocated,
/// and giving it up is ordered by that stream alone. All of it is new, and it stays there until the
/// hub ends: what comes too late is a hazard and harms nobody.
c10::Allocator& fake_cuda_allocator();

/// Giving `memory` up is ordered by `stream` too. Nothing, unless the allocator made it.
void keep_for_stream(const c10::DataPtr& memory, comm::DeviceStream stream);

}  // namespace kolo::test
