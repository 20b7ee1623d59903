#include "bench/ranks/device_worker.hpp"

#include <memory>

#include <mpi.h>

#include "bench/cases/device_cases.hpp"
#include "bench/ranks/device_timer.hpp"
#include "bench/ranks/gpu.hpp"
#include "kolo/runtime.hpp"

namespace bench {
namespace {

/// What a rank has besides its timer.
struct Equipment {
  explicit Equipment(const Options& options) : cases(options, runtime, *gpu) {}

  kolo::Runtime runtime;
  std::unique_ptr<Gpu> gpu = open_gpu(runtime.local_rank());
  DeviceCases cases;
};

}  // namespace

Worker make_device_worker(const Options& options) {
  const auto rank = std::make_shared<Equipment>(options);
  return {[rank](const Workload& workload) { return rank->cases.make(workload); },
          std::make_unique<DeviceTimer>(*rank->gpu, rank->cases.memory(), rank->runtime.rank(),
                                        rank->runtime.size(), [] { MPI_Barrier(MPI_COMM_WORLD); })};
}

}  // namespace bench
