#include "support/fake_world/fake_world.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "comm/message_bounds.hpp"
#include "comm/topology.hpp"
#include "kolo/error.hpp"
#include "support/fake_world/fake_network.hpp"
#include "support/gpu/fake_gpu.hpp"

namespace kolo::test {
namespace {

std::shared_ptr<SharedWindow> make_window_of(const std::shared_ptr<FakeMemory>& memory, int rank,
                                             std::size_t segment_bytes) {
  std::vector<SharedWindow::Segment> segments;
  for (std::size_t i = 0; i < memory->counters.size(); ++i) {
    std::byte* const bytes = memory->segments.data() + i * memory->segment_bytes;
    segments.push_back({&memory->counters[i].value, {bytes, segment_bytes}});
  }
  return std::make_shared<SharedWindow>(rank, std::move(segments), memory);
}

/// Awaitable.
struct AllArrived {
  FakeNetwork& network;
  const FakeNetwork::WindowRequest& request;
  std::size_t members;

  bool ready() const { return network.all_arrived(request, members); }
};

class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(std::shared_ptr<FakeNetwork> network, std::vector<int> ranks, int rank,
                   int channel)
      : network_(std::move(network)),
        ranks_(std::move(ranks)),
        rank_(rank),
        channel_(channel),
        mailbox_(network_->mailbox_of(channel, world_rank(rank))) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  int channel() const { return channel_; }
  const std::vector<int>& world_ranks() const { return ranks_; }

  Transfer send(std::span<const std::byte> data, int destination, int tag) override {
    comm::check_message(*this, data.size(), destination, tag);
    bytes_sent_ += data.size();
    auto message = network_->send(channel_, world_rank(rank_), world_rank(destination), tag, data);
    if (!network_->options().rendezvous) return {};
    sends_[++last_token_] = {std::move(message), data};
    return {*this, last_token_};
  }

  Transfer receive(std::span<std::byte> data, int source, int tag) override {
    comm::check_message(*this, data.size(), source, tag);
    receives_.push_back({++last_token_, data, world_rank(source), tag, false, {}});
    return {*this, last_token_};
  }

  std::optional<Envelope> probe(int tag) override {
    comm::check_message(*this, 0, rank_, tag);
    const std::lock_guard lock(mailbox_.lock);
    match();
    const auto now = network_->now();  // read once, as in match
    for (const auto& message : mailbox_.messages) {
      if (message->tag != tag || message->due > now) continue;
      const auto member = std::find(ranks_.begin(), ranks_.end(), message->source);
      return Envelope{static_cast<int>(member - ranks_.begin()), message->data.size()};
    }
    return std::nullopt;
  }

  UnderWay give_up_receives() override {  // a message arrives whole or not at all
    const std::lock_guard lock(mailbox_.lock);
    receives_.clear();
    return {};
  }

 private:
  struct Send {
    std::shared_ptr<Message> message;
    std::span<const std::byte> data;  // must not change before the send is ready
  };
  struct Receive {
    std::uint64_t token;
    std::span<std::byte> data;
    int source;  // world rank
    int tag;
    bool is_done;
    std::string error;
  };

  int world_rank(int member) const { return ranks_[static_cast<std::size_t>(member)]; }

  /// Matches arrived messages to pending receives, in order. The caller holds the lock.
  void match() {
    // Read once: a later receive must not match what an earlier one missed.
    const auto now = network_->now();
    for (Receive& receive : receives_) {
      if (receive.is_done) continue;
      const auto found = std::find_if(
          mailbox_.messages.begin(), mailbox_.messages.end(), [&](const auto& message) {
            return message->source == receive.source && message->tag == receive.tag;
          });
      if (found == mailbox_.messages.end() || (*found)->due > now) continue;
      Message& message = **found;
      if (message.data.size() == receive.data.size()) {
        if (!message.data.empty()) {
          std::memcpy(receive.data.data(), message.data.data(), message.data.size());
        }
      } else {
        receive.error = "receive from rank " + std::to_string(receive.source) + ": expected " +
                        std::to_string(receive.data.size()) + " bytes, got " +
                        std::to_string(message.data.size());
      }
      receive.is_done = true;
      message.is_received = true;
      mailbox_.messages.erase(found);
    }
  }

  bool test(std::uint64_t token) override {
    const std::lock_guard lock(mailbox_.lock);
    match();  // as in MPI, testing one transfer makes progress on all
    if (const auto send = sends_.find(token); send != sends_.end()) {
      const Send sent = send->second;
      if (!sent.message->is_received) return false;
      sends_.erase(send);
      if (!std::equal(sent.data.begin(), sent.data.end(), sent.message->data.begin())) {
        throw BackendError("send: the buffer was written to before the transfer was ready");
      }
      return true;
    }
    const auto receive = find(token);
    if (!receive->is_done) return false;
    const std::string error = receive->error;
    receives_.erase(receive);
    if (!error.empty()) throw BackendError(error);
    return true;
  }

  void abandon(std::uint64_t token) noexcept override {
    if (sends_.erase(token) > 0) return;
    if (const auto receive = find(token); receive != receives_.end()) receives_.erase(receive);
  }

  std::deque<Receive>::iterator find(std::uint64_t token) {
    return std::find_if(receives_.begin(), receives_.end(),
                        [&](const Receive& receive) { return receive.token == token; });
  }

  std::shared_ptr<FakeNetwork> network_;
  std::vector<int> ranks_;
  int rank_;
  int channel_;
  Mailbox& mailbox_;
  std::map<std::uint64_t, Send> sends_;
  std::deque<Receive> receives_;
  std::uint64_t last_token_ = 0;
};

}  // namespace

FakeWorld::FakeWorld(std::shared_ptr<FakeNetwork> network, int rank)
    : network_(std::move(network)),
      topology_(comm::Topology::from_nodes(
          rank, comm::contiguous_nodes(network_->size(), network_->options().nodes))) {
  const std::vector<comm::CoreSet> cores(static_cast<std::size_t>(topology_.size),
                                         comm::own_cores());
  topology_.shares_cores = comm::shares_cores(cores, std::vector<int>(cores.size()), rank);
  const FakeOptions& options = network_->options();
  if (options.make_gpus) {
    gpus_ = options.make_gpus(*this);
  } else if (hub()) {
    gpus_ = std::make_unique<FakeGpus>(hub(), rank, options.gpus_per_rank * topology_.local_size);
  }
}

FakeWorld::~FakeWorld() = default;

comm::Gpus* FakeWorld::gpus() { return gpus_.get(); }

std::shared_ptr<FakeGpuHub> FakeWorld::hub() const { return network_->hub(); }

std::unique_ptr<Communicator> FakeWorld::make_communicator(std::span<const int> ranks,
                                                           int channel) {
  const auto self = std::find(ranks.begin(), ranks.end(), topology_.rank);
  return std::make_unique<FakeCommunicator>(network_, std::vector<int>(ranks.begin(), ranks.end()),
                                            static_cast<int>(self - ranks.begin()), channel);
}

std::unique_ptr<Communicator> FakeWorld::make_communicator() {
  std::vector<int> everybody(static_cast<std::size_t>(topology_.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  return make_communicator(everybody, 0);
}

Task FakeWorld::make_window(Communicator& communicator, int, std::size_t segment_bytes,
                            std::shared_ptr<SharedWindow>& window) {
  auto& fake = dynamic_cast<FakeCommunicator&>(communicator);
  const FakeNetwork::WindowRequest& request =
      network_->arrive(fake.channel(), fake.world_ranks(), fake.rank(), segment_bytes);
  co_await AllArrived{*network_, request, fake.world_ranks().size()};
  if (request.failure) throw BackendError("fake window: " + *request.failure);
  window = make_window_of(request.memory, fake.rank(), segment_bytes);
}

std::vector<int> FakeWorld::dead_peers() {
  const std::lock_guard lock(dead_mutex_);
  for (int rank = 0; rank < topology_.size; ++rank) {
    const bool is_known = std::find(dead_.begin(), dead_.end(), rank) != dead_.end();
    if (rank != topology_.rank && network_->is_dead(rank) && !is_known) dead_.push_back(rank);
  }
  return dead_;
}

void FakeWorld::die() { network_->kill(topology_.rank); }

void FakeWorld::unplug() { network_->unplug(topology_.rank); }

void FakeWorld::plug_in() { network_->plug_in(topology_.rank); }

void run_ranks(int size, const std::function<void(FakeWorld&)>& body, FakeOptions options) {
  const auto network = std::make_shared<FakeNetwork>(size, options);
  std::mutex lock;
  std::string failures;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::string failure;
      try {
        FakeWorld world(network, rank);
        body(world);
      } catch (const std::exception& error) {
        failure = error.what();
      } catch (...) {
        failure = "threw something that is no std::exception";
      }
      if (failure.empty()) return;
      const std::lock_guard guard(lock);
      failures += "[rank " + std::to_string(rank) + "] " + failure + "\n";
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!failures.empty()) throw std::runtime_error(failures);
}

}  // namespace kolo::test
