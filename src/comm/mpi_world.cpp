#include "comm/mpi_world.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/deadline.hpp"
#include "base/mutex.hpp"
#include "base/random.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "comm/mpi_communicator.hpp"
#include "comm/mpi_environment.hpp"
#include "comm/shared_memory.hpp"
#include "comm/topology.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

/// Gathers `value` from every rank.
template <class T>
std::vector<T> gather(MpiHandle world, int size, T value) {
  std::vector<T> values(static_cast<std::size_t>(size));
  mpi().allgather(&value, sizeof(T), mpi().byte, values.data(), sizeof(T), mpi().byte, world);
  return values;
}

std::vector<std::string> gather_host_names(MpiHandle world, int size) {
  constexpr int kLongest = 64;  // longer names are truncated
  std::array<char, kLongest> own{};
  ::gethostname(own.data(), own.size() - 1);
  std::vector<char> all(static_cast<std::size_t>(size) * own.size());
  mpi().allgather(own.data(), kLongest, mpi().byte, all.data(), kLongest, mpi().byte, world);
  std::vector<std::string> names;
  for (auto name = all.begin(); name != all.end(); name += kLongest) names.emplace_back(&*name);
  return names;
}

std::vector<CoreSet> gather_cores(MpiHandle world, int size) {
  const CoreSet own = own_cores();
  std::vector<CoreSet> all(static_cast<std::size_t>(size));
  mpi().allgather(own.data(), sizeof own, mpi().byte, all.data(), sizeof own, mpi().byte, world);
  return all;
}

/// The lowest world rank that shares memory with this rank, possibly this rank itself.
int find_node(MpiHandle world, int rank) {
  MpiHandle shared;
  mpi().comm_split_type(world, mpi().comm_type_shared, rank, mpi().info_null, &shared);
  const MpiComm owner(shared);
  int node = rank;
  mpi().bcast(&node, 1, mpi().integer, 0, shared);
  return node;
}

/// Lets all ranks of a communicator start together.
class Start {
 public:
  Start(MpiHandle communicator, StartWatch& watch, const Config& config)
      : communicator_(communicator),
        watch_(watch),
        timeout_(config.start_timeout),
        deadline_(Deadline::after(timeout_)),
        time_to_look_(Deadline::after(StartWatch::time_to_look(timeout_))) {}

  /// Returns once all ranks have called this, so that later collectives need not wait. Where MPI
  /// calls exclude each other, also waits for this process's turn on all ranks: a start calls MPI
  /// functions that block, and so would hold another start of this process, for which another rank
  /// may wait before it takes part in this one.
  std::unique_lock<Mutex> gather() {
    wait_for([&](MpiHandle* request) { mpi().ibarrier(communicator_, request); });
    const bool needs_turn = mpi_environment::lock_calls().owns_lock();
    static Mutex turns;
    std::uint64_t random = static_cast<std::uint64_t>(::getpid()) ^
                           std::hash<std::thread::id>{}(std::this_thread::get_id());
    for (std::uint64_t longest_pause = 1; needs_turn; longest_pause *= 2) {
      std::unique_lock turn(turns, std::try_to_lock);
      const int is_mine = turn.owns_lock() ? 1 : 0;
      int is_on_all = 0;
      wait_for([&](MpiHandle* request) {
        mpi().iallreduce(&is_mine, &is_on_all, 1, mpi().integer, mpi().min, communicator_, request);
      });
      if (is_on_all != 0) return turn;
      if (turn) turn.unlock();
      // Two starts that hold each other's turn must not try again in step.
      std::this_thread::sleep_for(std::chrono::milliseconds(
          next_random(random) % std::min<std::uint64_t>(longest_pause, 64)));
    }
    return {};
  }

 private:
  /// Between tests, other threads may call MPI.
  template <class Begin>
  void wait_for(Begin begin) {
    constexpr std::chrono::microseconds kLongestPause{1000};
    MpiHandle request;
    auto calls = mpi_environment::lock_calls();
    begin(&request);
    MpiStatus ignored;
    std::chrono::microseconds pause{10};
    for (int is_complete = 0;;) {
      mpi().test(&request, &is_complete, &ignored);
      if (is_complete != 0) return;
      check_time();
      if (calls) calls.unlock();
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
      calls = mpi_environment::lock_calls();
    }
  }

  void check_time() {
    if (time_to_look_.has_passed()) {
      watch_.look();
      time_to_look_ = Deadline::never();
    }
    if (!deadline_.has_passed()) return;
    int size = 0;
    mpi().comm_size(communicator_, &size);
    mpi_environment::mark_broken();
    throw TimeoutError(
        "not all " + std::to_string(size) + " ranks have constructed a kolo::Runtime within " +
        text_of_seconds(timeout_) + " (KOLO_START_TIMEOUT). " + watch_.describe_arrivals() +
        " Construct one on every rank of the communicator, or raise the timeout.");
  }

  const MpiHandle communicator_;
  StartWatch& watch_;
  const std::chrono::nanoseconds timeout_;
  const Deadline deadline_;
  Deadline time_to_look_;
};

}  // namespace

MpiWorld::MpiWorld(const Config& config, std::optional<MpiHandle> communicator)
    : start_(communicator ? std::nullopt : find_launcher()),
      session_(config.mpi_library, *start_, config.start_timeout),
      turn_(Start(communicator.value_or(mpi().comm_world), *start_, config).gather()),
      duplicate_(communicator.value_or(mpi().comm_world)) {
  const std::unique_lock turn = std::move(turn_);  // until this rank has started
  start_.reset();
  const auto calls = mpi_environment::lock_calls();
  const MpiHandle base = duplicate_.base();
  int rank = 0;
  int size = 1;
  mpi().comm_rank(base, &rank);
  mpi().comm_size(base, &size);
  const int machine = find_node(base, rank);
  const std::vector<int> machines = gather(base, size, machine);

  topology_ = Topology::from_nodes(
      rank, config.fake_nodes > 0 ? contiguous_nodes(size, config.fake_nodes) : machines);
  topology_.host_of_rank = gather_host_names(base, size);
  if (config.share_gpu) let_ranks_share_gpus(gather(base, size, usual_gpu(topology_.local_rank)));
  topology_.shares_cores = shares_cores(gather_cores(base, size), machines, rank);

  // Processes on one machine can be watched if they share a PID namespace, even if they act as
  // different nodes.
  const std::vector<int> pids = gather(base, size, ::getpid());
  const std::uint64_t own_namespace = pid_namespace();
  const std::vector<std::uint64_t> namespaces = gather(base, size, own_namespace);
  std::vector<PeerLiveness::Peer> peers;
  for (int peer = 0; peer < size; ++peer) {
    const std::size_t index = static_cast<std::size_t>(peer);
    const bool is_visible =
        machines[index] == machine && own_namespace != 0 && namespaces[index] == own_namespace;
    if (peer != rank && is_visible) peers.push_back({peer, pids[index]});
  }
  liveness_.emplace(peers);
}

MpiWorld::~MpiWorld() {
  // A rank that has left in an orderly way may have died since. Open MPI then waits for it in
  // MPI_Finalize, forever if the launcher has not noticed yet.
  if (session_.is_in_creator_process() && !liveness_->dead().empty())
    mpi_environment::mark_broken();
  // Using the duplicates could block on a lost peer, and a forked child must not use them.
  if (mpi_environment::is_broken() || !session_.is_in_creator_process()) duplicate_.give_up();
}

std::unique_ptr<Communicator> MpiWorld::make_communicator(std::span<const int> ranks, int channel) {
  MpiCommunicator::Options options;
  options.base = duplicate_.base();
  options.ranks.assign(ranks.begin(), ranks.end());
  options.channel = duplicate_.own_channel(channel);
  return std::make_unique<MpiCommunicator>(std::move(options));
}

Task MpiWorld::make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                           std::shared_ptr<SharedWindow>& window) {
  return make_posix_window(communicator, tag, segment_bytes, window);
}

Gpus* MpiWorld::gpus() { return cuda_gpus(); }

void MpiWorld::mark_broken() noexcept { mpi_environment::mark_broken(); }

}  // namespace kolo::comm
