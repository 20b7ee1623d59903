#include "runtime/engine/engine_factory.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/wait.hpp"
#include "kolo/error.hpp"
#include "runtime/control/agree_on_start.hpp"
#include "runtime/control/window_header_exchange.hpp"
#include "runtime/protocol/set_name.hpp"

namespace kolo::runtime {
namespace {

// Every engine has its own communicators.
enum Channel {
  kData,
  kControl,
  kNode,
  kDevice,
  kMaking,
  kHeartbeats,
  kMessages,
  kChannelsPerEngine
};

/// Sets that all ranks agree on count up from 0, those that their members make down from -1.
int channel_of(int number, Channel channel) {
  const int place = number >= 0 ? 2 * number : -2 * number - 1;
  return place * kChannelsPerEngine + channel;
}

/// The node of every member, numbered in the order of the nodes' lowest members.
std::vector<int> nodes_of(const std::vector<int>& ranks, const std::vector<int>& node_of_rank) {
  std::vector<int> nodes;
  for (const int rank : ranks) nodes.push_back(node_of_rank[static_cast<std::size_t>(rank)]);
  return comm::renumbered(std::move(nodes));
}

bool has_several_nodes(const std::vector<int>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), [](int node) { return node > 0; });
}

void warn(const Communicator& communicator, const char* purpose, const std::string& problem) {
  if (communicator.rank() > 0) return;
  KOLO_LOG(Warn) << "no shared memory for " << purpose << ", using messages instead: " << problem;
}

}  // namespace

std::unique_ptr<Communicator> EngineFactory::make_control_communicator(
    int number, const std::vector<int>& ranks) {
  return world_.make_communicator(ranks, channel_of(number, kControl));
}

std::shared_ptr<Engine> EngineFactory::make(int number, const std::vector<int>& ranks,
                                            Matching matching, const std::shared_ptr<Engine>& world,
                                            std::shared_ptr<insight::Insight> insight) {
  Engine::Parts parts{{choices_, config_}};
  const std::string name = name_of_set(number, ranks);
  parts.set.name = name;
  parts.control.communicator = make_control_communicator(number, ranks);
  parts.set.world_ranks = ranks;
  parts.set.communicator = world_.make_communicator(ranks, channel_of(number, kData));
  parts.set.node_of_rank = nodes_of(ranks, world_.topology().node_of_rank);
  parts.messages = world_.make_communicator(ranks, channel_of(number, kMessages));
  if (has_several_nodes(parts.set.node_of_rank)) {
    parts.control.heartbeats = world_.make_communicator(ranks, channel_of(number, kHeartbeats));
    parts.set.nodes = Nodes{parts.set.node_of_rank, comm::is_homogeneous(parts.set.node_of_rank)};
  }
  const auto check = [&, patience = std::optional<Deadline>()]() mutable {
    const auto lost = world != nullptr ? world->lost_rank() : std::nullopt;
    if (!lost) return;
    // A member that learned of it before it began to make the set does not come any more.
    if (!patience) patience = Deadline::after(longest_wait());
    const bool is_member = std::ranges::find(ranks, lost->rank) != ranks.end();
    if (!is_member && !patience->has_passed()) return;
    throw PeerLostError("process set " + name +
                        " was not made: " + (is_member ? "" : "a member does not come, after ") +
                        "rank " + std::to_string(lost->rank) + " " + lost->how);
  };
  const bool is_start = world == nullptr;
  const Members members{
      {world_, ranks, is_start ? "Kolo started" : "process set " + name + " was being made", check},
      is_start ? config_.start_timeout : config_.timeout};
  if (config_.shared_memory && ranks.size() > 1) share_memory(parts, number, members);
  if (matching == Matching::ByOrder) match_by_order(parts, members);
  parts.number = number;
  find_gpus(parts);
  auto engine = std::make_shared<Engine>(std::move(parts), world_, std::move(insight));
  engine->start_thread();
  // Otherwise a member that fails up to here would leave others behind that wait for it in the set.
  if (world != nullptr) {
    is_true_on_all(true, *world_.make_communicator(ranks, channel_of(number, kMaking)), members);
  }
  return engine;
}

std::chrono::nanoseconds EngineFactory::longest_wait() const {
  return config_.lost_after.count() > 0 ? config_.lost_after : Config().lost_after;
}

void EngineFactory::match_by_order(Engine::Parts& parts, const Members& members) {
  SetContext& set = parts.set;
  std::shared_ptr<SharedWindow> board;
  std::vector<int> sharers;
  // Where data move through windows, no messages carry the news.
  if (set.staging != nullptr || set.node_staging != nullptr) {
    Communicator& neighbours =
        set.staging != nullptr ? *parts.control.communicator : *set.node_communicator;
    for (int rank = 0; rank < set.communicator->size(); ++rank) {
      const auto own = static_cast<std::size_t>(set.communicator->rank());
      const auto other = static_cast<std::size_t>(rank);
      if (set.node_of_rank[other] == set.node_of_rank[own]) sharers.push_back(rank);
    }
    wait(world_.make_window(neighbours, 0, OrderedCommunicator::board_bytes(), board), members);
  }
  if (set.staging != nullptr) {
    try {
      wait(comm::make_shared_heap(*parts.control.communicator, 0, set.heap), members);
    } catch (const BackendError& error) {
      warn(*parts.control.communicator, "memory that ranks access without copies", error.what());
    }
  }
  auto communicator = std::make_unique<OrderedCommunicator>(
      std::move(set.communicator), set.world_ranks, std::move(board), std::move(sharers));
  parts.order = communicator.get();
  set.communicator = std::move(communicator);
}

void EngineFactory::find_gpus(Engine::Parts& parts) {
  comm::Gpus* const gpus = world_.gpus();
  if (gpus == nullptr) return;
  parts.device.emplace(BatchExecutor::DeviceParts{*gpus, launches_, SetContext{choices_, config_},
                                                  parts.number, parts.order != nullptr});
  SetContext& set = parts.device->set;
  set.name = parts.set.name;
  set.world_ranks = parts.set.world_ranks;
  set.communicator = world_.make_communicator(set.world_ranks, channel_of(parts.number, kDevice));
}

void EngineFactory::share_memory(Engine::Parts& parts, int number, const Members& members) {
  if (parts.set.nodes) {
    share_memory_inside_nodes(parts, number, members);
    return;
  }
  Communicator& everybody = *parts.control.communicator;
  std::string problem;
  parts.control.window =
      make_window(everybody, WindowHeaderExchange::segment_bytes(), members, problem);
  if (parts.control.window == nullptr) warn(everybody, "agreement", problem);
  parts.set.staging = make_staging(everybody, everybody, members, "data");
}

void EngineFactory::share_memory_inside_nodes(Engine::Parts& parts, int number,
                                              const Members& members) {
  SetContext& set = parts.set;
  const auto rank = static_cast<std::size_t>(set.communicator->rank());
  std::vector<int> neighbours;
  for (std::size_t i = 0; i < set.world_ranks.size(); ++i) {
    if (set.node_of_rank[i] == set.node_of_rank[rank]) neighbours.push_back(set.world_ranks[i]);
  }
  set.node_communicator = world_.make_communicator(neighbours, channel_of(number, kNode));
  set.node_staging = make_staging(*set.node_communicator, *parts.control.communicator, members,
                                  "data inside nodes");
  set.nodes->window = set.node_staging.get();
}

void EngineFactory::wait(Task task, const Members& members) {
  comm::wait(std::move(task), Deadline::after(members.timeout), members.ranks);
}

/// Whether `holds` is true on all ranks of `communicator`. Collective.
bool EngineFactory::is_true_on_all(bool holds, Communicator& communicator, const Members& members) {
  const auto size = static_cast<std::size_t>(communicator.size());
  const std::byte own{holds};
  std::vector<std::byte> all(size);
  const std::vector<std::size_t> one_each(size, 1);
  wait(gather_bytes(communicator, &own, all.data(), one_each), members);
  return std::ranges::count(all, std::byte{1}) == communicator.size();
}

/// Null on all ranks of the set unless every rank has its window.
std::shared_ptr<SharedWindow> EngineFactory::make_staging(Communicator& neighbours,
                                                          Communicator& everybody,
                                                          const Members& members,
                                                          const char* purpose) {
  std::string problem;
  std::shared_ptr<SharedWindow> window =
      make_window(neighbours, config_.tuning.staging_bytes, members, problem);
  if (is_true_on_all(window != nullptr, everybody, members)) return window;
  if (window == nullptr) warn(neighbours, purpose, problem);
  return nullptr;
}

/// Null, on all ranks of `communicator`, if shared memory is not available.
std::shared_ptr<SharedWindow> EngineFactory::make_window(Communicator& communicator,
                                                         std::size_t bytes, const Members& members,
                                                         std::string& problem) {
  std::shared_ptr<SharedWindow> window;
  try {
    wait(world_.make_window(communicator, 0, bytes, window), members);
  } catch (const BackendError& error) {
    problem = error.what();
  }
  return window;
}

}  // namespace kolo::runtime
