#pragma once

#include "bench/options.hpp"
#include "bench/station.hpp"

namespace bench {

/// A rank that measures on its GPU. Collective. `options` outlives it. Throws as open_gpu and
/// DeviceContestants do.
Station make_device_station(const Options& options);

}  // namespace bench
