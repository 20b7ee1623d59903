#pragma once

#include <string>

#include "bench/workload/workload.hpp"
#include "kolo/config.hpp"

namespace bench {

/// Which algorithms Kolo would choose for `ranks` ranks on this machine, by collective, placement
/// and size, and why. `has_window`: whether they can share memory.
std::string describe_choices(const kolo::Config& config, int ranks, bool has_window);

/// Formats a size as in "64 KB", with powers of 1024.
std::string format_bytes(std::size_t bytes);

}  // namespace bench
