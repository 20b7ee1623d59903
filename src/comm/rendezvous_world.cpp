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
  std::uint64_t gpu = 0;
  Notice notice{};

  bool shares_memory_with(const Card& other) const {
    return boot == other.boot && pid_namespace == other.pid_namespace && user == other.user;
  }
};
static_assert(std::is_trivially_copyable_v<Card>);

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

/// Of all ranks; `step` is part of the keys, `peers` are watched if given.
std::vector<Card> exchange(const Rendezvous& rendezvous, const std::string& step, const Card& own,
                           Deadline deadline, std::chrono::nanoseconds timeout,
                           PeerLiveness* peers) {
  const std::string prefix = rendezvous.prefix + step + "/";
  std::string value(sizeof own, '\0');
  std::memcpy(value.data(), &own, sizeof own);
  rendezvous.store->set(prefix + std::to_string(rendezvous.rank), value);
  std::vector<Card> cards(static_cast<std::size_t>(rendezvous.size));
  std::vector<int> missing;
  for (int rank = 0; rank < rendezvous.size; ++rank) {
    const auto has_died = [&] {
      return peers != nullptr && std::ranges::count(peers->dead(), rank) > 0;
    };
    const auto text = get(*rendezvous.store, prefix + std::to_string(rank), deadline, has_died);
    if (!text && has_died()) {
      throw PeerLostError("rank " + std::to_string(rank) +
                          " died while Kolo started: the process has ended");
    }
    if (!text) {
      missing.push_back(rank);
    } else if (text->size() != sizeof(Card)) {
      throw BackendError("rank " + std::to_string(rank) + " runs another version of Kolo");
    } else {
      std::memcpy(&cards[static_cast<std::size_t>(rank)], text->data(), sizeof(Card));
    }
  }
  if (missing.empty()) return cards;
  if (own.notice.failure[0] != '\0') {
    throw BackendError("shared memory: " + std::string(own.notice.failure.data()));
  }
  throw TimeoutError(
      "of " + std::to_string(rendezvous.size) + " ranks, " + list_ranks(missing) +
      (missing.size() == 1 ? " has" : " have") + " not constructed a kolo::Runtime within " +
      text_of_seconds(timeout) +
      " (KOLO_START_TIMEOUT). Start one on every rank, all on this host and with the "
      "same store or folder, or raise the timeout.");
}

void require_one_host(const std::vector<Card>& cards) {
  for (std::size_t rank = 1; rank < cards.size(); ++rank) {
    if (cards[rank].shares_memory_with(cards[0])) continue;
    const bool is_other_host = cards[rank].boot != cards[0].boot;
    throw InvalidArgument(
        "rank 0 runs on " + std::string(cards[0].host.data()) + ", rank " + std::to_string(rank) +
        " on " + cards[rank].host.data() +
        (is_other_host ? "" : ", in another PID namespace or as another user") +
        ". Without MPI all ranks share one host, PID namespace and user. Start the program by "
        "mpirun.");
  }
}

template <class T>
std::vector<T> of_all(const std::vector<Card>& cards, T Card::* field) {
  std::vector<T> values;
  for (const Card& card : cards) values.push_back(card.*field);
  return values;
}

std::vector<PeerLiveness::Peer> peers_of(const std::vector<Card>& cards, int rank) {
  std::vector<PeerLiveness::Peer> peers;
  for (int peer = 0; peer < static_cast<int>(cards.size()); ++peer) {
    if (peer != rank) peers.push_back({peer, cards[static_cast<std::size_t>(peer)].pid});
  }
  return peers;
}

}  // namespace

RendezvousWorld::RendezvousWorld(const Config& config, const Rendezvous& rendezvous) {
  const int rank = rendezvous.rank;
  const int size = rendezvous.size;
  require_rank(rank, size);
  topology_ = Topology::from_nodes(rank, contiguous_nodes(size, std::max(config.fake_nodes, 1)));
  Card own = own_card();
  if (config.share_gpu) own.gpu = usual_gpu(topology_.local_rank);
  own.notice.attempt([&] {
    rings_.emplace(size);
    own.notice.segment = rings_->address();
  });
  const Deadline deadline = Deadline::after(config.start_timeout);
  const auto exchange_cards = [&](const char* step) {
    return exchange(rendezvous, step, own, deadline, config.start_timeout,
                    liveness_ ? &*liveness_ : nullptr);
  };
  const std::vector<Card> cards = exchange_cards("start");
  require_one_host(cards);
  const std::vector<Notice> notices = of_all(cards, &Card::notice);
  require_success(notices);

  for (const Card& card : cards) topology_.host_of_rank.emplace_back(card.host.data());
  topology_.shares_cores = shares_cores(of_all(cards, &Card::cores),
                                        std::vector<int>(cards.size(), /*machine*/ 0), rank);
  if (config.share_gpu) let_ranks_share_gpus(of_all(cards, &Card::gpu));
  own.notice.attempt([&] {
    liveness_.emplace(peers_of(cards, rank));
    std::vector<SegmentAddress> segments;
    for (const Notice& notice : notices) segments.push_back(notice.segment);
    rings_->connect(rank, segments);
  });
  require_success(of_all(exchange_cards("ready"), &Card::notice));
  rings_->close_file();
}

std::unique_ptr<Communicator> RendezvousWorld::make_communicator(std::span<const int> ranks,
                                                                 int channel) {
  return rings_->make_communicator(ranks, channel);
}

Task RendezvousWorld::make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                                  std::shared_ptr<SharedWindow>& window) {
  return make_posix_window(communicator, tag, segment_bytes, window);
}

Gpus* RendezvousWorld::gpus() { return cuda_gpus(); }

}  // namespace kolo::comm
