#include "comm/rendezvous_world.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string_view>
#include <thread>
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

std::uint64_t random_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
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

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all.append(text_of(text.size())).append(text);
  return all;
}

std::vector<std::string> split(std::string_view all) {
  std::vector<std::string> texts;
  std::size_t size = 0;
  while (all.size() >= sizeof size) {
    std::memcpy(&size, all.data(), sizeof size);
    all.remove_prefix(sizeof size);
    texts.emplace_back(all.substr(0, size));
    all.remove_prefix(texts.back().size());
  }
  return texts;
}

/// Where the ranks of a world find each other, in steps that all take together. In each, rank 0
/// reads the texts of all and sets them as one, so that the store serves a rank a few times only.
///
/// The store may have what an earlier attempt at the same job has set, perhaps of another number of
/// ranks. So rank 0 draws a number for each list of cards, which is part of the keys of all steps,
/// until all ranks have answered to the same list, with their own card in it.
class Meeting {
 public:
  /// `card`: what this rank says of itself.
  Meeting(const Rendezvous& rendezvous, const std::string& card, std::chrono::nanoseconds timeout)
      : store_(*rendezvous.store),
        rank_(rendezvous.rank),
        size_(rendezvous.size),
        card_(number_ + card),
        timeout_(timeout),
        deadline_(Deadline::after(timeout)) {}

  /// The cards of all ranks.
  std::vector<std::string> begin() {
    constexpr std::chrono::milliseconds kLongestPause{200};
    std::chrono::milliseconds pause{5};
    store_.set(kCards + std::to_string(rank_), card_);
    for (;; std::this_thread::sleep_for(pause = std::min(2 * pause, kLongestPause))) {
      const std::optional<std::string> list = current_list();
      if (!list) fail(kCards);
      std::vector<std::string> cards = split(*list);
      if (std::ssize(cards) == size_ + 1 &&
          cards[static_cast<std::size_t>(rank_)].starts_with(number_)) {
        attempt_ = "kolo/" + cards.back() + "/";
        cards.pop_back();
        for (std::string& card : cards) card.erase(0, number_.size());
        if (gather("agreed/", "", [&] { return current_list() != list; })) return cards;
      }
      require_own_place();
      if (deadline_.has_passed()) fail(attempt_.empty() ? kCards : attempt_ + "agreed/");
    }
  }

  /// From now on ranks of this host that die end the wait.
  void watch(PeerLiveness& peers) { peers_ = &peers; }

  /// The texts of all ranks. `step` is part of the keys.
  std::vector<std::string> exchange(const std::string& step, const std::string& own) {
    auto texts = gather(step, own, [&] { return peers_ != nullptr && !peers_->dead().empty(); });
    if (!texts) fail(attempt_ + step);
    return std::move(*texts);
  }

 private:
  using Condition = std::function<bool()>;

  static constexpr const char* kCards = "kolo/cards/";
  static constexpr const char* kAll = "all";  // after a prefix of keys of ranks

  /// Waits in short steps, between which a store can throw that the program is interrupted. None if
  /// it has waited in vain, or until the deadline.
  std::optional<std::string> get(const std::string& key, const Condition& is_in_vain) {
    constexpr std::chrono::milliseconds kWait{100};
    for (bool is_last = false;; is_last = is_last || is_in_vain()) {
      is_last = is_last || deadline_.has_passed();
      auto value = store_.get(key, is_last ? std::chrono::milliseconds(0) : kWait);
      if (value || is_last) return value;
    }
  }

  std::optional<std::vector<std::string>> get_all(const std::string& prefix,
                                                  const Condition& is_in_vain) {
    std::vector<std::string> texts;
    for (int rank = 0; rank < size_; ++rank) {
      auto text = get(prefix + std::to_string(rank), is_in_vain);
      if (!text) return std::nullopt;
      texts.push_back(std::move(*text));
    }
    return texts;
  }

  /// What each rank has set with the key of this step.
  std::optional<std::vector<std::string>> gather(const std::string& step, const std::string& own,
                                                 const Condition& is_in_vain) {
    const std::string prefix = attempt_ + step;
    store_.set(prefix + std::to_string(rank_), own);
    if (rank_ != 0) {
      const auto all = get(prefix + kAll, is_in_vain);
      return all ? std::optional(split(*all)) : std::nullopt;
    }
    auto texts = get_all(prefix, is_in_vain);
    if (!texts || is_in_vain()) return std::nullopt;
    store_.set(prefix + kAll, joined(*texts));
    return texts;
  }

  /// The cards as rank 0 has read them last, and its number for them.
  std::optional<std::string> current_list() {
    const auto is_displaced = [this] {
      require_own_place();
      return false;
    };
    if (rank_ != 0) return get(std::string(kCards) + kAll, is_displaced);
    auto cards = get_all(kCards, is_displaced);
    if (!cards) return std::nullopt;
    if (listed_ != *cards) {
      listed_ = *cards;
      cards->push_back(std::to_string(random_number()));
      list_ = joined(*cards);
      store_.set(std::string(kCards) + kAll, list_);
    }
    return list_;
  }

  void require_own_place() {
    const auto card = store_.get(kCards + std::to_string(rank_), std::chrono::milliseconds(0));
    if (card && card->starts_with(number_)) return;
    throw InvalidArgument("another process has started as rank " + std::to_string(rank_) +
                          " with the same store or folder. Give each job one of its own.");
  }

  /// Ranks whose key with this prefix is missing are those that others have waited for.
  [[noreturn]] void fail(const std::string& prefix) {
    require_own_place();
    if (peers_ != nullptr && !peers_->dead().empty()) {
      throw PeerLostError("rank " + std::to_string(peers_->dead().front()) +
                          " died while Kolo started: the process has ended");
    }
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      const std::string key = prefix + std::to_string(rank);
      if (!store_.get(key, std::chrono::milliseconds(0))) missing.push_back(rank);
    }
    if (missing.empty()) missing.push_back(0);  // which has not read them
    throw TimeoutError("of " + std::to_string(size_) + " ranks, " + list_ranks(missing) +
                       (missing.size() == 1 ? " has" : " have") +
                       " not constructed a kolo::Runtime within " + text_of_seconds(timeout_) +
                       " (KOLO_START_TIMEOUT). Start one on every rank, with the same store or "
                       "folder, or raise the timeout.");
  }

  Store& store_;
  const int rank_;
  const int size_;
  const std::string number_ = text_of(random_number());  // tells this start of the rank from others
  const std::string card_;
  const std::chrono::nanoseconds timeout_;
  const Deadline deadline_;
  PeerLiveness* peers_ = nullptr;
  std::string attempt_;  // of all keys after the list
  // Of rank 0.
  std::vector<std::string> listed_;
  std::string list_;
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
  Meeting meeting(rendezvous, text_of(own_card()), config.start_timeout);
  const auto cards = values_of<Card>(meeting.begin());
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
  const auto texts = meeting.exchange("means/", text_of(own) + (ucx_ ? ucx_->address() : ""));
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
  const auto ready = values_of<Means>(meeting.exchange("ready/", text_of(own)));
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
