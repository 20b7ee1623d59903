#include "bench/ranks/device_worker.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <mpi.h>

#include "bench/cases/device_cases.hpp"
#include "bench/ranks/device_timer.hpp"
#include "bench/ranks/gpu.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "kolo/config.hpp"
#include "kolo/runtime.hpp"

namespace bench {
namespace {

/// This process's rank in MPI_COMM_WORLD and within its node.
struct Place {
  Place() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm node = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local_rank);
    MPI_Comm_free(&node);
  }

  int rank = 0;
  int ranks = 1;
  int local_rank = 0;
};

/// A rank's objects other than its timer.
struct RankState {
  RankState(const Options& options, const DeviceRole& role) {
    if (role.has_kolo) {
      runtime.emplace();
    } else if (kolo::Config::from_environment().share_gpu) {
      std::vector<std::uint64_t> gpus(static_cast<std::size_t>(place.ranks));
      const std::uint64_t own = kolo::comm::usual_gpu(place.local_rank);
      MPI_Allgather(&own, 1, MPI_UINT64_T, gpus.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD);
      kolo::comm::let_ranks_share_gpus(gpus);
    }
    gpu = open_gpu(place.local_rank);
    cases.emplace(options, role, place.rank, place.ranks, *gpu);
  }

  Place place;
  std::optional<kolo::Runtime> runtime;
  std::unique_ptr<Gpu> gpu;
  std::optional<DeviceCases> cases;
};

}  // namespace

Worker make_device_worker(const Options& options, const DeviceRole& role) {
  const auto rank = std::make_shared<RankState>(options, role);
  return {[rank](const Workload& workload) { return rank->cases->make(workload); },
          std::make_unique<DeviceTimer>(*rank->gpu, rank->cases->memory(), rank->place.rank,
                                        rank->place.ranks, [] { MPI_Barrier(MPI_COMM_WORLD); })};
}

}  // namespace bench
