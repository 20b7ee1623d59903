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

/// What happens to messages that a rank sends: to those that match, after the first `skip` of them,
/// and to `count` at most.
struct Fault {
  enum class Kind : std::uint8_t {
    Drop,     ///< it never arrives, though the sender sees it leave
    Delay,    ///< it leaves `delay` later, or once `until` is true, and so do those behind it
    Corrupt,  ///< one bit arrives changed
    Die,      ///< from here on nothing leaves this rank or reaches it
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

/// A world in which things go wrong: passes everything on to another one, except for the faults.
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
