#pragma once

namespace examples {

/// Gives this process its share of the node's cores, unless OMP_NUM_THREADS says how many threads
/// to use: by default each process would use as many as there are cores.
void share_cores(int local_size);

}  // namespace examples
