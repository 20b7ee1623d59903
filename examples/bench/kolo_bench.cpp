// Benchmark of Kolo's collectives; see docs/bench.md.
//
//   kolo-bench allreduce --np 2 --baseline mpi
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>

#include <mpi.h>

#include "bench/cases/kolo_cases.hpp"
#include "bench/cases/mpi_cases.hpp"
#include "bench/jobs/controller.hpp"
#include "bench/jobs/driver.hpp"
#include "bench/jobs/local_job.hpp"
#include "bench/options.hpp"
#include "bench/ranks/device_worker.hpp"
#include "bench/ranks/host_timer.hpp"
#include "bench/ranks/serve.hpp"
#include "bench/report/config_table.hpp"
#include "bench/report/self_check.hpp"
#include "comm/launcher.hpp"
#include "common/descriptor.hpp"
#include "kolo/error.hpp"

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

/// What a rank on a GPU measures. If these are the only ranks: Kolo, and NCCL if it is the
/// baseline. Otherwise NCCL if KOLO_BENCH_NCCL is set, else Kolo.
bench::DeviceRole device_role(const bench::Options& options, bool is_alone) {
  if (is_alone) return {true, options.has_baseline() ? bench::kNcclBesideKolo : ""};
  const char* const nccl = std::getenv(bench::kNcclVariable);
  if (nccl == nullptr) return {};
  return {false, nccl};
}

/// A rank that measures Kolo's cases, and the baseline's too if these are the only ranks.
bench::Worker make_worker(const bench::Options& options, bool is_alone) {
  if (options.is_on_gpu()) {
    return bench::make_device_worker(options, device_role(options, is_alone));
  }
  const auto kolo = std::make_shared<bench::KoloCases>(options);
  const auto mpi = std::make_shared<bench::MpiCases>();
  const auto make = [=](const bench::Workload& workload) {
    std::vector<bench::Case> cases = kolo->make(workload);
    if (is_alone) {
      for (bench::Case& one : mpi->make(workload)) cases.push_back(std::move(one));
    }
    return cases;
  };
  return {make, std::make_unique<bench::HostTimer>()};
}

/// Measures under the user's own mpirun.
int run_among_ranks(const bench::Options& options, const Mpi& mpi) {
  if ((options.has_baseline() && !options.is_on_gpu()) || options.np > 0) {
    return examples::leave({kWrongUsage,
                            "--np and --baseline mpi start processes of their own: run kolo-bench "
                            "without mpirun, as in kolo-bench --np 2 --baseline mpi\n"},
                           mpi.is_first());
  }
  std::optional<bench::OutputFiles> files;
  try {
    if (mpi.is_first()) files.emplace(options);
  } catch (const kolo::InvalidArgument& error) {
    std::fprintf(stderr, "kolo-bench: %s\n", error.what());
  }
  if (!first_rank_succeeded(files.has_value())) return kWrongUsage;
  try {
    bench::LocalJob job(make_worker(options, true));
    const std::string baseline = !options.is_on_gpu()     ? "mpi in the same processes"
                                 : options.has_baseline() ? "nccl in the same processes"
                                                          : "";
    return bench::control(options, baseline, {&job}, files ? &*files : nullptr);
  } catch (const kolo::InvalidArgument& error) {  // all ranks find the same error
    return examples::leave({kWrongUsage, "kolo-bench: " + std::string(error.what()) + '\n'},
                           mpi.is_first());
  }
}

int measure(const bench::Options& options, int argc, char** argv) {
  if (!bench::controller_socket().empty()) {
    return bench::serve(MPI_THREAD_MULTIPLE, [&options] { return make_worker(options, false); });
  }
  return bench::drive(options, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  examples::open_standard_streams();
  const bool is_under_mpirun = kolo::comm::find_launcher() && bench::controller_socket().empty();
  std::optional<Mpi> mpi;
  if (is_under_mpirun) mpi.emplace();
  const bool prints = !mpi || mpi->is_first();
  try {
    const auto parsed = bench::parse_options(argc, argv);
    if (const auto* exit = std::get_if<examples::Exit>(&parsed)) {
      return examples::leave(*exit, prints);
    }
    const auto& options = std::get<bench::Options>(parsed);
    if (options.mode == bench::Mode::PrintConfig)
      return examples::leave({0, bench::config_table()}, prints);
    if (options.mode == bench::Mode::SelfCheck) {
      if (prints) bench::check_self(options.ranks_to_start());
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
