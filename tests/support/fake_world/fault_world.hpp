#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "comm/world.hpp"

namespace kolo::test {

/// A fault of the messages that a rank sends. It applies to messages that match, after the first
/// `skip` of them, at most `count` times.
struct Fault {
  enum class Kind : std::uint8_t {
    Drop,     ///< never arrives, although the send completes
    Delay,    ///< leaves `delay` later, or once `until` is true, and later ones wait behind it
    Corrupt,  ///< arrives with one bit flipped
    Die,      ///< from here on this rank neither sends nor receives
  };
  static constexpr int kAny = -1;

  Kind kind = Kind::Drop;
  int channel = kAny;
  int destination = kAny;  ///< rank in the communicator
  int tag = kAny;
  std::uint64_t skip = 0;
  std::uint64_t count = std::numeric_limits<std::uint64_t>::max();
  std::chrono::microseconds delay{0};
  const std::atomic<bool>* until = nullptr;
};

/// Injects faults; everything else is passed on to another world.
class FaultWorld final : public comm::World {
 public:
  /// `on_death` is called once when a fault of kind Die strikes.
  FaultWorld(std::shared_ptr<comm::World> inner, std::vector<Fault> faults,
             std::function<void()> on_death = {});
  ~FaultWorld() override;

  const comm::Topology& topology() const override { return inner_->topology(); }
  std::unique_ptr<Communicator> make_communicator(std::span<const int> ranks, int channel) override;
  Task make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                   std::shared_ptr<SharedWindow>& window) override;
  comm::Gpus* gpus() override { return inner_->gpus(); }
  std::vector<int> dead_peers() override { return inner_->dead_peers(); }
  void mark_broken() noexcept override { inner_->mark_broken(); }

  struct Plan;

 private:
  std::shared_ptr<comm::World> inner_;
  std::shared_ptr<Plan> plan_;  // shared with the communicators, which may live longer
};

}  // namespace kolo::test
