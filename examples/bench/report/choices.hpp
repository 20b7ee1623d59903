#pragma once

#include <string>

#include "bench/workload/workload.hpp"
#include "kolo/config.hpp"

namespace bench {

/// Which algorithm Kolo would choose among `ranks` ranks of this machine, for each collective and
/// placement, by size, and why. `has_window`: whether they can share memory.
std::string describe_choices(const kolo::Config& config, int ranks, bool has_window);

/// As in "64 KB": powers of 1024.
std::string format_bytes(std::size_t bytes);

/// The algorithm that the settings prefer; empty: the fastest that fits.
const std::string& preference(const kolo::Config& config, Operation operation);

}  // namespace bench
