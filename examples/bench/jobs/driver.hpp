#pragma once

#include "bench/options.hpp"

namespace bench {

/// Set for ranks that measure NCCL alone, to the reference that they are.
inline constexpr const char* kNcclVariable = "KOLO_BENCH_NCCL";

/// Starts Kolo's ranks, and those of the baseline where there is one, with the command line that
/// this program was given, and measures with them. Returns the exit status.
int drive(const Options& options, int argc, char** argv);

}  // namespace bench
