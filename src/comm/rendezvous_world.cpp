#include "comm/rendezvous_world.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <type_traits>
#include <unistd.h>
#include <utility>

#include "base/deadline.hpp"
#include "base/text.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "comm/shared_memory.hpp"
#include "comm/start_watch.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

void require_rank(int rank, int size) {
  if (rank >= 0 && rank < size) return;
  throw InvalidArgument("a world of " + std::to_string(size) + " ranks has no rank " +
                        std::to_string(rank) + ". Ranks are 0 … size-1.");
}

/// What a rank says of itself.
struct Card {
  std::array<char, 64> host{};      // name; longer ones are truncated
  std::array<char, 40> boot{};      // identifies the running system
  std::uint64_t pid_namespace = 0;  // which containers on one machine may not share
  std::uint64_t user = 0;
  int pid = 0;
  CoreSet cores{};

  bool shares_memory_with(const Card& other) const {
    return boot == other.boot && pid_namespace == other.pid_namespace && user == other.user;
  }
};

Card own_card() {
  Card card;
  ::gethostname(card.host.data(), card.host.size() - 1);
  std::ifstream("/proc/sys/kernel/random/boot_id").getline(card.boot.data(), card.boot.size());
  card.pid_namespace = comm::pid_namespace();
  card.user = ::geteuid();
  card.pid = ::getpid();
  card.cores = own_cores();
  return card;
}

/// How others reach a rank. Its address in UCX follows.
struct Means {
  Notice notice{};
  std::uint64_t gpu = 0;
};

template <class T>
std::string text_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::string text(sizeof value, '\0');
  std::memcpy(text.data(), &value, sizeof value);
  return text;
}

template <class T>
std::vector<T> values_of(const std::vector<std::string>& texts) {
  std::vector<T> values(texts.size());
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].size() < sizeof(T)) {
      throw BackendError("rank " + std::to_string(rank) + " runs another version of Kolo");
    }
    std::memcpy(&values[rank], texts[rank].data(), sizeof(T));
  }
  return values;
}

/// Waits in short steps, between which a store can throw that the program is interrupted. None if
/// it has waited in vain.
std::optional<std::string> get(Store& store, const std::string& key, Deadline deadline,
                               const std::function<bool()>& is_in_vain) {
  constexpr std::chrono::milliseconds kWait{100};
  for (;;) {
    const bool is_last = deadline.has_passed() || is_in_vain();
    auto value = store.get(key, is_last ? std::chrono::milliseconds(0) : kWait);
    if (value || is_last) return value;
  }
}

/// Where the ranks of a world find each other, in steps that all take together.
class Meeting {
 public:
  Meeting(const Rendezvous& rendezvous, std::chrono::nanoseconds timeout)
      : rendezvous_(rendezvous), timeout_(timeout), deadline_(Deadline::after(timeout)) {}

  /// From now on ranks of this host that die end the wait.
  void watch(PeerLiveness& peers) { peers_ = &peers; }

  /// The texts of all ranks. `step` is part of the keys.
  std::vector<std::string> exchange(const std::string& step, const std::string& own) {
    const std::string prefix = rendezvous_.prefix + step + "/";
    rendezvous_.store->set(prefix + std::to_string(rendezvous_.rank), own);
    std::vector<std::string> texts(static_cast<std::size_t>(rendezvous_.size));
    std::vector<int> missing;
    for (int rank = 0; rank < rendezvous_.size; ++rank) {
      const auto has_died = [&] {
        return peers_ != nullptr && std::ranges::count(peers_->dead(), rank) > 0;
      };
      auto text = get(*rendezvous_.store, prefix + std::to_string(rank), deadline_, has_died);
      if (!text && has_died()) {
        throw PeerLostError("rank " + std::to_string(rank) +
                            " died while Kolo started: the process has ended");
      }
      if (!text) {
        missing.push_back(rank);
      } else {
        texts[static_cast<std::size_t>(rank)] = std::move(*text);
      }
    }
    if (missing.empty()) return texts;
    throw TimeoutError(
        "of " + std::to_string(rendezvous_.size) + " ranks, " + list_ranks(missing) +
        (missing.size() == 1 ? " has" : " have") + " not constructed a kolo::Runtime within " +
        text_of_seconds(timeout_) +
        " (KOLO_START_TIMEOUT). Start one on every rank, with the same store or folder, or raise "
        "the timeout.");
  }

 private:
  const Rendezvous& rendezvous_;
  const std::chrono::nanoseconds timeout_;
  const Deadline deadline_;
  PeerLiveness* peers_ = nullptr;
};

/// For each rank the lowest one with which it shares memory.
std::vector<int> machines_of(const std::vector<Card>& cards) {
  std::vector<int> machines;
  for (const Card& card : cards) {
    const auto first = std::ranges::find_if(
        cards, [&](const Card& other) { return card.shares_memory_with(other); });
    machines.push_back(static_cast<int>(first - cards.begin()));
  }
  return machines;
}

template <class T, class Value>
std::vector<Value> of_all(const std::vector<T>& items, Value T::* field) {
  std::vector<Value> values;
  for (const T& item : items) values.push_back(item.*field);
  return values;
}

Topology topology_of(const std::vector<Card>& cards, const std::vector<int>& machines, int rank,
                     int fake_nodes) {
  const int size = static_cast<int>(cards.size());
  Topology topology =
      Topology::from_nodes(rank, fake_nodes > 0 ? contiguous_nodes(size, fake_nodes) : machines);
  for (const Card& card : cards) topology.host_of_rank.emplace_back(card.host.data());
  topology.shares_cores = shares_cores(of_all(cards, &Card::cores), machines, rank);
  return topology;
}

/// The ranks on this host, this one among them.
std::vector<int> neighbours_of(const std::vector<int>& machines, int rank) {
  std::vector<int> neighbours;
  for (std::size_t other = 0; other < machines.size(); ++other) {
    const bool is_here = machines[other] == machines[static_cast<std::size_t>(rank)];
    if (is_here) neighbours.push_back(static_cast<int>(other));
  }
  return neighbours;
}

std::vector<PeerLiveness::Peer> peers_of(const std::vector<Card>& cards,
                                         const std::vector<int>& neighbours, int rank) {
  std::vector<PeerLiveness::Peer> peers;
  for (const int other : neighbours) {
    if (other != rank) peers.push_back({other, cards[static_cast<std::size_t>(other)].pid});
  }
  return peers;
}

}  // namespace

RendezvousWorld::RendezvousWorld(const Config& config, const Rendezvous& rendezvous)
    : rank_(rendezvous.rank) {
  require_rank(rank_, rendezvous.size);
  Meeting meeting(rendezvous, config.start_timeout);
  const auto cards = values_of<Card>(meeting.exchange("start", text_of(own_card())));
  machines_ = machines_of(cards);
  topology_ = topology_of(cards, machines_, rank_, config.fake_nodes);
  const std::vector<int> neighbours = neighbours_of(machines_, rank_);
  Means own;
  if (config.share_gpu) own.gpu = usual_gpu(topology_.local_rank);
  own.notice.attempt([&] {
    liveness_.emplace(peers_of(cards, neighbours, rank_));
    rings_.emplace(static_cast<int>(neighbours.size()));
    own.notice.segment = rings_->address();
    if (neighbours.size() < cards.size()) ucx_.emplace(rank_, *rings_);
  });
  const auto texts = meeting.exchange("means", text_of(own) + (ucx_ ? ucx_->address() : ""));
  const auto means = values_of<Means>(texts);
  require_success(of_all(means, &Means::notice), "the start");
  if (config.share_gpu) let_ranks_share_gpus(of_all(means, &Means::gpu));

  meeting.watch(*liveness_);
  own.notice.attempt([&] {
    std::vector<SegmentAddress> segments;
    for (const int each : neighbours)
      segments.push_back(means[static_cast<std::size_t>(each)].notice.segment);
    rings_->connect(rank_, neighbours, segments);
    if (ucx_) ucx_->connect(addresses_in(texts));
  });
  const auto ready = values_of<Means>(meeting.exchange("ready", text_of(own)));
  require_success(of_all(ready, &Means::notice), "the start");
  rings_->close_file();
  if (ucx_) ucx_->start();
}

/// In UCX, of ranks on other hosts.
std::vector<std::string> RendezvousWorld::addresses_in(
    const std::vector<std::string>& texts_of_means) const {
  std::vector<std::string> addresses;
  for (const std::string& text : texts_of_means) {
    const int rank = static_cast<int>(addresses.size());
    addresses.push_back(is_on_this_host(rank) ? "" : text.substr(sizeof(Means)));
  }
  return addresses;
}

bool RendezvousWorld::is_on_this_host(int rank) const {
  return machines_[static_cast<std::size_t>(rank)] == machines_[static_cast<std::size_t>(rank_)];
}

std::unique_ptr<Communicator> RendezvousWorld::make_communicator(std::span<const int> ranks,
                                                                 int channel) {
  std::vector<int> members;  // on this host
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    if (is_on_this_host(ranks[member])) members.push_back(static_cast<int>(member));
  }
  if (members.size() == ranks.size()) return rings_->make_communicator(ranks, channel);
  return ucx_->make_communicator(ranks, channel, std::move(members));
}

void RendezvousWorld::mark_broken() noexcept {
  if (ucx_) ucx_->give_up();
}

Task RendezvousWorld::make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                                  std::shared_ptr<SharedWindow>& window) {
  return make_posix_window(communicator, tag, segment_bytes, window);
}

Gpus* RendezvousWorld::gpus() { return cuda_gpus(); }

}  // namespace kolo::comm
