#pragma once

namespace bench {

/// Measures messages between each two hosts or, of one host, each two ranks, and a barrier of all
/// ranks, and prints them on rank 0. Collective; needs a current Runtime. Throws
/// kolo::InvalidArgument on all ranks if there is only one.
void measure_pairs();

}  // namespace bench
