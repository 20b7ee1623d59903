#pragma once

#include "bench/cases/device_cases.hpp"
#include "bench/options.hpp"
#include "bench/ranks/worker.hpp"

namespace bench {

/// A rank that measures on its GPU. Collective over MPI_COMM_WORLD. `options` must outlive it. Does
/// not initialize Kolo unless the role has it. Throws what open_gpu and DeviceCases throw.
Worker make_device_worker(const Options& options, const DeviceRole& role);

}  // namespace bench
