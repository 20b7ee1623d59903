#pragma once

#include "kolo/algorithm.hpp"

namespace kolo::ops {

/// The built-in algorithms, one a file of the same name, which explains it.
Task allreduce_direct(CollectiveCall call);
Task allreduce_native(CollectiveCall call);
Task allreduce_ring(CollectiveCall call);
Task allreduce_window(CollectiveCall call);
Task allreduce_window_small(CollectiveCall call);
Task allreduce_zero_copy(CollectiveCall call);
Task allgather_ring(CollectiveCall call);
Task broadcast_binomial(CollectiveCall call);

}  // namespace kolo::ops
