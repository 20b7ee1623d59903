#pragma once

#include "bench/cases/device_cases.hpp"
#include "bench/options.hpp"
#include "bench/ranks/worker.hpp"

namespace bench {

/// A rank that measures on its GPU. Collective over MPI's world. `options` outlives it. Nothing of
/// Kolo runs in it unless the role has Kolo. Throws as open_gpu and DeviceCases do.
Worker make_device_worker(const Options& options, const DeviceRole& role);

}  // namespace bench
