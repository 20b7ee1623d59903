#pragma once

#include "bench/options.hpp"
#include "bench/ranks/worker.hpp"

namespace bench {

/// A rank that measures on its GPU. Collective. `options` outlives it. Throws as open_gpu and
/// DeviceCases do.
Worker make_device_worker(const Options& options);

}  // namespace bench
