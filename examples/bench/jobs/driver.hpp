#pragma once

#include "bench/options.hpp"

namespace bench {

/// The environment variable of ranks that measure only NCCL: the name of their reference.
inline constexpr const char* kNcclVariable = "KOLO_BENCH_NCCL";

/// Starts Kolo's ranks with this program's command line, and the baseline's ranks if there is one,
/// and measures. Returns the exit status.
int drive(const Options& options, int argc, char** argv);

}  // namespace bench
