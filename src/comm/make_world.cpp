#include "comm/make_world.hpp"

#include <string>

#include "comm/file_store.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "comm/launcher.hpp"
#include "comm/mpi_environment.hpp"
#include "comm/mpi_library.hpp"
#include "comm/mpi_world.hpp"
#include "comm/self_world.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

MpiHandle communicator_of(int handle) {
  require_known_abi();
  if (!mpi_environment::is_running()) {
    throw InvalidArgument(
        "InitOptions::communicator is given, but MPI is not running. Call MPI_Init_thread first, "
        "and MPI_Finalize after the last kolo::Runtime.");
  }
  const MpiHandle communicator = mpi().comm_f2c(handle);
  if (communicator == mpi().comm_null) {
    throw InvalidArgument(
        "InitOptions::communicator is MPI_COMM_NULL. Construct the Runtime on the ranks of the "
        "communicator only.");
  }
  int is_intercommunicator = 0;
  mpi().comm_test_inter(communicator, &is_intercommunicator);
  if (is_intercommunicator != 0) {
    throw InvalidArgument(
        "InitOptions::communicator is an intercommunicator, whose two groups have ranks of their "
        "own. Give the result of MPI_Intercomm_merge.");
  }
  return communicator;
}

/// In the folder that KOLO_RENDEZVOUS names, as the rank that the launcher says.
Rendezvous rendezvous_of(const std::string& folder, const std::optional<Launcher>& launcher) {
  if (!launcher || launcher->size < 1 || launcher->rank < 0) {
    throw InvalidArgument(
        "KOLO_RENDEZVOUS is set, but nothing says which rank of how many this process is. Set "
        "KOLO_RANK, from 0, and KOLO_SIZE, or use torchrun, srun or mpirun, which set their own.");
  }
  if (std::string problem = problem_with_nested_start(); !problem.empty()) {
    throw InvalidArgument(problem);
  }
  return {std::make_shared<FileStore>(folder), launcher->rank, launcher->size};
}

std::shared_ptr<World> make_world_of(const Config& config,
                                     const std::optional<Launcher>& launcher) {
  if (!config.rendezvous.empty() && config.launcher != "none") {
    return std::make_shared<RendezvousWorld>(config, rendezvous_of(config.rendezvous, launcher));
  }
  // MPI_Init may end a process that srun has started without the PMI that this MPI was built for.
  const bool is_alone = !launcher || (launcher->starts_any_program && launcher->size == 1);
  if (is_alone && config.launcher != "mpi" && !mpi_environment::is_running()) {
    return std::make_shared<SelfWorld>();
  }
  auto world = std::make_shared<MpiWorld>(config);
  if (launcher && world->topology().size == 1) {
    if (std::string problem = problem_with_world_of_one(*launcher); !problem.empty()) {
      throw InvalidArgument(problem);
    }
  }
  return world;
}

}  // namespace

std::shared_ptr<World> make_world(const Config& config, std::optional<int> communicator,
                                  const std::optional<Rendezvous>& rendezvous) {
  if (communicator && rendezvous) {
    throw InvalidArgument(
        "InitOptions::communicator and InitOptions::store are given. Give one: "
        "MPI connects the ranks, or the store.");
  }
  set_up_nccl(config.nccl_algo);  // before MPI, which may start threads
  const std::optional<Launcher> launcher =
      config.launcher == "none" ? std::nullopt : find_launcher();
  std::shared_ptr<World> world;
  if (communicator) {
    world = std::make_shared<MpiWorld>(config, communicator_of(*communicator));
  } else if (rendezvous) {
    world = std::make_shared<RendezvousWorld>(config, *rendezvous);
  } else {
    world = make_world_of(config, launcher);
  }
  note_start(launcher);
  return world;
}

}  // namespace kolo::comm
