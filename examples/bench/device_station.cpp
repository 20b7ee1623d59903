#include "bench/device_station.hpp"

#include <memory>

#include <mpi.h>

#include "bench/device_contestants.hpp"
#include "bench/device_referee.hpp"
#include "bench/gpu.hpp"
#include "kolo/runtime.hpp"

namespace bench {
namespace {

/// What a rank has besides its referee.
struct Equipment {
  explicit Equipment(const Options& options) : contestants(options, runtime, *gpu) {}

  kolo::Runtime runtime;
  std::unique_ptr<Gpu> gpu = open_gpu(runtime.local_rank());
  DeviceContestants contestants;
};

}  // namespace

Station make_device_station(const Options& options) {
  const auto rank = std::make_shared<Equipment>(options);
  return {
      [rank](const Workload& workload) { return rank->contestants.make(workload); },
      std::make_unique<DeviceReferee>(*rank->gpu, rank->contestants.memory(), rank->runtime.rank(),
                                      rank->runtime.size(), [] { MPI_Barrier(MPI_COMM_WORLD); })};
}

}  // namespace bench
