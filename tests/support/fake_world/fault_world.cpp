#include "support/fake_world/fault_world.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/message_bounds.hpp"

namespace kolo::test {

struct FaultWorld::Plan {
  std::mutex lock;
  std::vector<Fault> faults;
  std::function<void()> on_death;
  std::atomic<bool> is_dead{false};

  /// The fault that applies to this message, if any.
  std::optional<Fault> strike(int channel, int destination, int tag) {
    const auto fits = [](int wanted, int given) {
      return wanted == Fault::kAny || wanted == given;
    };
    const std::lock_guard guard(lock);
    for (Fault& fault : faults) {
      if (fault.count == 0 || !fits(fault.channel, channel) ||
          !fits(fault.destination, destination) || !fits(fault.tag, tag)) {
        continue;
      }
      if (fault.skip > 0) {
        --fault.skip;
        continue;
      }
      --fault.count;
      return fault;
    }
    return std::nullopt;
  }

  void die() {
    if (!is_dead.exchange(true) && on_death) on_death();
  }
};

namespace {

using Clock = std::chrono::steady_clock;

class FaultCommunicator final : public Communicator {
 public:
  FaultCommunicator(std::unique_ptr<Communicator> inner, int channel,
                    std::shared_ptr<FaultWorld::Plan> plan)
      : inner_(std::move(inner)), channel_(channel), plan_(std::move(plan)) {}

  Communicator& inner() { return *inner_; }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Transfer send(std::span<const std::byte> data, int destination, int tag) override {
    comm::check_message(*this, data.size(), destination, tag);
    if (plan_->is_dead) return {};
    const std::optional<Fault> fault = plan_->strike(channel_, destination, tag);
    bytes_sent_ += data.size();
    if (!fault) {
      const bool must_wait = has_waiting(destination, tag);
      return must_wait ? hold(data, destination, tag, Clock::now())
                       : inner_->send(data, destination, tag);
    }
    switch (fault->kind) {
      case Fault::Kind::Drop: return {};
      case Fault::Kind::Delay: {
        Transfer transfer = hold(data, destination, tag, Clock::now() + fault->delay);
        held_.back().until = fault->until;
        return transfer;
      }
      case Fault::Kind::Corrupt: {
        Transfer transfer = hold(data, destination, tag, Clock::now());
        Held& held = held_.back();
        held.changed.assign(data.begin(), data.end());
        if (!held.changed.empty()) held.changed[data.size() / 2] ^= std::byte{4};
        held.data = held.changed;
        return transfer;
      }
      case Fault::Kind::Die: plan_->die(); return {};
    }
    return {};
  }

  Transfer receive(std::span<std::byte> data, int source, int tag) override {
    held_.push_back({++last_token_, {}, source, tag, {}, {}, inner_->receive(data, source, tag)});
    held_.back().is_receive = true;
    return {*this, last_token_};
  }

  std::optional<Envelope> probe(int tag) override {
    if (plan_->is_dead) return std::nullopt;
    release();
    return inner_->probe(tag);
  }

  UnderWay give_up_receives() override {
    held_.remove_if([](const Held& held) { return held.is_receive; });
    return inner_->give_up_receives();
  }

 private:
  /// A delayed message, or a receive: testing a receive also gives delayed messages a chance to
  /// leave.
  struct Held {
    std::uint64_t token;
    std::span<const std::byte> data;
    int peer;
    int tag;
    Clock::time_point due;
    std::vector<std::byte> changed{};
    std::optional<Transfer> transfer{};
    bool is_receive = false;
    const std::atomic<bool>* until = nullptr;

    bool is_due(Clock::time_point now) const {
      return until != nullptr ? until->load() : due <= now;
    }
  };

  Transfer hold(std::span<const std::byte> data, int destination, int tag, Clock::time_point due) {
    held_.push_back({++last_token_, data, destination, tag, due});
    ++unsent_;
    return {*this, last_token_};
  }

  bool has_waiting(int destination, int tag) const {
    return std::any_of(held_.begin(), held_.end(), [&](const Held& held) {
      return !held.transfer && held.peer == destination && held.tag == tag;
    });
  }

  /// Sends messages that are due, but never overtakes an earlier one with the same peer and tag.
  void release() {
    if (unsent_ == 0) return;
    const auto now = Clock::now();
    for (auto held = held_.begin(); held != held_.end(); ++held) {
      const bool is_blocked = std::any_of(held_.begin(), held, [&](const Held& earlier) {
        return !earlier.transfer && earlier.peer == held->peer && earlier.tag == held->tag;
      });
      if (held->transfer || is_blocked || !held->is_due(now) || plan_->is_dead) continue;
      held->transfer = inner_->send(held->data, held->peer, held->tag);
      --unsent_;
    }
  }

  bool test(std::uint64_t token) override {
    release();
    const auto held = find(token);
    if (plan_->is_dead) return !held->is_receive;
    if (!held->transfer) return false;
    try {
      if (!held->transfer->ready()) return false;
    } catch (...) {
      held_.erase(held);
      throw;
    }
    held_.erase(held);
    return true;
  }

  void abandon(std::uint64_t token) noexcept override {
    const auto held = find(token);
    if (held == held_.end()) return;
    if (!held->transfer) --unsent_;
    held_.erase(held);
  }

  std::list<Held>::iterator find(std::uint64_t token) {
    return std::find_if(held_.begin(), held_.end(),
                        [&](const Held& held) { return held.token == token; });
  }

  std::unique_ptr<Communicator> inner_;
  int channel_;
  std::shared_ptr<FaultWorld::Plan> plan_;
  std::list<Held> held_;
  std::size_t unsent_ = 0;  // entries of held_
  std::uint64_t last_token_ = 0;
};

}  // namespace

FaultWorld::FaultWorld(std::shared_ptr<comm::World> inner, std::vector<Fault> faults,
                       std::function<void()> on_death)
    : inner_(std::move(inner)), plan_(std::make_shared<Plan>()) {
  plan_->faults = std::move(faults);
  plan_->on_death = std::move(on_death);
}

FaultWorld::~FaultWorld() = default;

std::unique_ptr<Communicator> FaultWorld::make_communicator(std::span<const int> ranks,
                                                            int channel) {
  return std::make_unique<FaultCommunicator>(inner_->make_communicator(ranks, channel), channel,
                                             plan_);
}

Task FaultWorld::make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                             std::shared_ptr<SharedWindow>& window) {
  return inner_->make_window(dynamic_cast<FaultCommunicator&>(communicator).inner(), tag,
                             segment_bytes, window);
}

}  // namespace kolo::test
