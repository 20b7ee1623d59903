// Benchmark of Kolo's collectives; see docs/bench.md.
//
//   kolo-bench allreduce --np 2 --baseline mpi
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <mpi.h>

#include "bench/channel.hpp"
#include "bench/control.hpp"
#include "bench/gpu.hpp"
#include "bench/jobs.hpp"
#include "bench/kolo_cases.hpp"
#include "bench/machine.hpp"
#include "bench/mpi_cases.hpp"
#include "bench/options.hpp"
#include "bench/pairs.hpp"
#include "bench/rank.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "comm/launcher.hpp"
#include "common/freed_memory.hpp"
#include "kolo/config.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"

namespace bench {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

/// MPI, initialized and finalized by this program rather than by Kolo.
class Mpi {
 public:
  Mpi() {
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  }
  Mpi(const Mpi&) = delete;  // MPI is initialized only once
  Mpi& operator=(const Mpi&) = delete;
  ~Mpi() { MPI_Finalize(); }

  bool is_first() const {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank == 0;
  }
};

/// Whether rank 0 has succeeded. Uses plain MPI, since Kolo is not initialized yet.
bool first_rank_succeeded(bool success) {
  int answer = success ? 1 : 0;
  MPI_Bcast(&answer, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return answer != 0;
}

/// The ranks of this program under one mpirun. All make the same calls and get the same results.
class LocalJob : public Job {
 public:
  explicit LocalJob(Worker worker) : worker_(std::move(worker)) {}

  int ranks() const override { return worker_.ranks(); }
  GpuDescription gpu() const override { return worker_.gpu(); }
  MpiDescription mpi() const override { return describe_mpi(); }
  std::vector<Label> prepare(const Workload& workload) override {
    return worker_.prepare(workload);
  }
  Block run(std::size_t case_index, int iterations) override {
    Block block = worker_.run(case_index, iterations);
    MPI_Allreduce(MPI_IN_PLACE, block.calls_us.data(), static_cast<int>(block.calls_us.size()),
                  MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &block.mean_us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &block.host_us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &block.cpu_s, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return block;
  }
  std::uint64_t count_wrong(std::size_t case_index) override {
    std::uint64_t wrong = worker_.count_wrong(case_index);
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return wrong;
  }

 private:
  Worker worker_;
};

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

/// Kolo may have found ranks that MPI does not connect.
void require_ranks_of_mpi() {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (kolo::size() == ranks) return;
  throw kolo::InvalidArgument("Kolo has " + std::to_string(kolo::size()) +
                              " ranks, and MPI, with " + "which it is compared, " +
                              std::to_string(ranks) +
                              ". Start them by mpirun, also where KOLO_RENDEZVOUS is set.");
}

/// A rank's objects other than its timer.
struct RankState {
  RankState(const Options& options, const DeviceRole& role) {
    if (role.has_kolo) {
      runtime.emplace();
      require_ranks_of_mpi();
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

/// A rank that measures on its GPU. Collective over MPI_COMM_WORLD. Does not initialize Kolo unless
/// the role has it. Throws what open_gpu and DeviceCases throw.
Worker make_device_worker(const Options& options, const DeviceRole& role) {
  const auto rank = std::make_shared<RankState>(options, role);
  return {[rank](const Workload& workload) { return rank->cases->make(workload); },
          std::make_unique<DeviceTimer>(*rank->gpu, rank->cases->memory(), rank->place.rank,
                                        rank->place.ranks, [] { MPI_Barrier(MPI_COMM_WORLD); })};
}

/// What a rank on a GPU measures. If these are the only ranks: Kolo, and NCCL if it is the
/// baseline. Otherwise NCCL if KOLO_BENCH_NCCL is set, else Kolo.
DeviceRole device_role(const Options& options, bool is_alone) {
  if (is_alone) return {true, options.has_baseline() ? kNcclBesideKolo : ""};
  const char* const nccl = std::getenv(kNcclVariable);
  if (nccl == nullptr) return {};
  return {false, nccl};
}

/// A rank that measures Kolo's cases, and the baseline's too if these are the only ranks.
Worker make_worker(const Options& options, bool is_alone) {
  if (options.is_on_gpu()) {
    return make_device_worker(options, device_role(options, is_alone));
  }
  const auto kolo = std::make_shared<KoloCases>(options);
  require_ranks_of_mpi();
  const auto mpi = std::make_shared<MpiCases>();
  const auto make = [=](const Workload& workload) {
    std::vector<Case> cases = kolo->make(workload);
    if (is_alone) {
      for (Case& one : mpi->make(workload)) cases.push_back(std::move(one));
    }
    return cases;
  };
  return {make, std::make_unique<HostTimer>()};
}

/// Measures under the user's own mpirun.
int run_among_ranks(const Options& options, const Mpi& mpi) {
  if ((options.has_baseline() && !options.is_on_gpu()) || options.np > 0) {
    return examples::leave({kWrongUsage,
                            "--np and --baseline mpi start processes of their own: run kolo-bench "
                            "without mpirun, as in kolo-bench --np 2 --baseline mpi\n"},
                           mpi.is_first());
  }
  std::optional<OutputFiles> files;
  try {
    if (mpi.is_first()) files.emplace(options);
  } catch (const kolo::InvalidArgument& error) {
    std::fprintf(stderr, "kolo-bench: %s\n", error.what());
  }
  if (!first_rank_succeeded(files.has_value())) return kWrongUsage;
  try {
    LocalJob job(make_worker(options, true));
    const std::string baseline = !options.is_on_gpu()     ? "mpi in the same processes"
                                 : options.has_baseline() ? "nccl in the same processes"
                                                          : "";
    return control(options, baseline, {&job}, files ? &*files : nullptr);
  } catch (const kolo::InvalidArgument& error) {  // all ranks find the same error
    return examples::leave({kWrongUsage, "kolo-bench: " + std::string(error.what()) + '\n'},
                           mpi.is_first());
  }
}

int measure(const Options& options, int argc, char** argv) {
  if (!controller_socket().empty()) {
    return serve(MPI_THREAD_MULTIPLE, [&options] { return make_worker(options, false); });
  }
  return drive(options, argc, argv);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  using namespace bench;
  examples::keep_freed_memory();
  open_standard_streams();
  const bool is_under_mpirun = kolo::comm::find_launcher() && controller_socket().empty();
  std::optional<Mpi> mpi;
  if (is_under_mpirun) mpi.emplace();
  const bool prints = !mpi || mpi->is_first();
  try {
    const auto parsed = parse_options(argc, argv);
    if (const auto* exit = std::get_if<examples::Exit>(&parsed)) {
      return examples::leave(*exit, prints);
    }
    const auto& options = std::get<Options>(parsed);
    if (options.mode == Mode::PrintConfig) return examples::leave({0, config_table()}, prints);
    if (options.mode == Mode::SelfCheck) {
      if (prints) check_self(options.ranks_to_start());
      return 0;
    }
    if (options.mode == Mode::Pairs) {
      if (!mpi) start_ranks(options.ranks_to_start(), argv);
      const kolo::Runtime runtime;
      measure_pairs();
      return 0;
    }
    return mpi ? run_among_ranks(options, *mpi) : measure(options, argc, argv);
  } catch (const kolo::InvalidArgument& error) {
    std::fprintf(stderr, "kolo-bench: %s\n", error.what());
    return kWrongUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kolo-bench: %s\n", error.what());
    return kFailed;
  }
}
