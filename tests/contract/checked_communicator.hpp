#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "contract/ranks.hpp"
#include "kolo/algorithm.hpp"
#include "kolo/communicator.hpp"

namespace kolo::test {

/// Passes messages on to another communicator and checks what an algorithm promises: that messages
/// are not longer than a segment, that it uses its own tags, and that it awaits all sends and
/// receives.
class CheckedCommunicator final : public Communicator {
 public:
  /// @param inner must outlive it
  CheckedCommunicator(Communicator& inner, std::size_t segment_bytes)
      : inner_(inner), segment_bytes_(segment_bytes) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  Transfer send(std::span<const std::byte> data, int destination, int tag) override {
    check("send", data.size(), tag);
    bytes_sent_ += data.size();
    return watch(inner_.send(data, destination, tag));
  }
  Transfer receive(std::span<std::byte> data, int source, int tag) override {
    check("receive", data.size(), tag);
    return watch(inner_.receive(data, source, tag));
  }
  std::optional<Envelope> probe(int tag) override { return inner_.probe(tag); }
  UnderWay give_up_receives() override { return inner_.give_up_receives(); }

  /// Call it once the algorithm has ended: its buffers may be freed then.
  void check_all_awaited() const {
    const std::size_t count = abandoned_ + transfers_.size();
    if (count > 0) {
      throw std::logic_error("the algorithm did not await " + std::to_string(count) +
                             " of its transfers");
    }
  }

 private:
  void check(const char* call, std::size_t bytes, int tag) const {
    if (bytes > segment_bytes_) {
      throw std::logic_error(std::string(call) + " of " + std::to_string(bytes) +
                             " bytes, but segment_bytes is " + std::to_string(segment_bytes_));
    }
    if (tag >= kAlgorithmTagCount) {
      throw std::logic_error(std::string(call) + " with tag " + std::to_string(tag) +
                             ", but algorithms use tags below " +
                             std::to_string(kAlgorithmTagCount));
    }
  }

  Transfer watch(Transfer transfer) {
    transfers_.emplace(++last_token_, std::move(transfer));
    return {*this, last_token_};
  }

  bool test(std::uint64_t token) override {
    const auto transfer = transfers_.find(token);
    if (!transfer->second.ready()) return false;
    transfers_.erase(transfer);
    return true;
  }
  void abandon(std::uint64_t token) noexcept override { abandoned_ += transfers_.erase(token); }

  Communicator& inner_;
  std::size_t segment_bytes_;
  std::map<std::uint64_t, Transfer> transfers_;  // by token
  std::uint64_t last_token_ = 0;
  std::size_t abandoned_ = 0;  // destroyed without being awaited
};

/// Runs an algorithm as this rank. Throws if the algorithm breaks a promise.
inline Task run_checked(const Rank& rank, const Algorithm& algorithm, CollectiveCall call) {
  CheckedCommunicator communicator(rank.communicator, call.segment_bytes);
  call.communicator = &communicator;
  call.window = &rank.window;
  call.nodes = rank.nodes;
  co_await algorithm.run(call);
  communicator.check_all_awaited();
}

}  // namespace kolo::test
