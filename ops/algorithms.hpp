#pragma once

#include "kolo/algorithm.hpp"

namespace kolo::ops {

/// The built-in algorithms from which a runtime chooses: those in the list of registry.cpp. Each is
/// explained in the file of the same name.
Task allreduce_adasum(CollectiveCall call);
Task allreduce_direct(CollectiveCall call);
Task allreduce_hierarchical(CollectiveCall call);
Task allreduce_ring(CollectiveCall call);
Task allreduce_window(CollectiveCall call);
Task allreduce_window_small(CollectiveCall call);
Task allreduce_zero_copy(CollectiveCall call);
Task allgather_hierarchical(CollectiveCall call);
Task allgather_pairwise(CollectiveCall call);
Task allgather_ring(CollectiveCall call);
Task allgather_window(CollectiveCall call);
Task allgather_zero_copy(CollectiveCall call);
Task alltoall_pairwise(CollectiveCall call);
Task alltoall_window(CollectiveCall call);
Task alltoall_zero_copy(CollectiveCall call);
Task broadcast_binomial(CollectiveCall call);
Task broadcast_hierarchical(CollectiveCall call);
Task broadcast_window(CollectiveCall call);
Task broadcast_zero_copy(CollectiveCall call);
Task reduce_scatter_direct(CollectiveCall call);
Task reduce_scatter_halving(CollectiveCall call);
Task reduce_scatter_hierarchical(CollectiveCall call);
Task reduce_scatter_ring(CollectiveCall call);
Task reduce_scatter_window(CollectiveCall call);
Task reduce_scatter_zero_copy(CollectiveCall call);

/// Not in that list, since there is no choice: a codec, and compression between nodes, have one
/// algorithm for each collective. HostBackend runs them.
Task allreduce_between_nodes(CollectiveCall call);
Task allreduce_coded(CollectiveCall call);
Task reduce_scatter_coded(CollectiveCall call);

}  // namespace kolo::ops
