#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "comm/deferred_communicator.hpp"
#include "comm/world.hpp"

namespace kolo::test {

/// Wraps another world so that its messages move on one thread only, as with MPI_THREAD_FUNNELED.
class DeferredWorld final : public comm::World {
 public:
  /// Both must outlive it.
  DeferredWorld(comm::World& inner, comm::MessagingThread& thread)
      : inner_(inner), thread_(thread) {}

  const comm::Topology& topology() const override { return inner_.topology(); }
  std::unique_ptr<Communicator> make_communicator(std::span<const int> ranks,
                                                  int channel) override {
    auto made = std::make_unique<comm::DeferredCommunicator>(
        inner_.make_communicator(ranks, channel), thread_);
    for_windows_[made.get()] = inner_.make_communicator(ranks, kChannelsForWindows + channel);
    return made;
  }
  Task make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                   std::shared_ptr<SharedWindow>& window) override {
    return inner_.make_window(*for_windows_.at(&communicator), tag, segment_bytes, window);
  }
  comm::Gpus* gpus() override { return inner_.gpus(); }
  comm::MessagingThread* messaging_thread() override { return &thread_; }
  std::vector<int> dead_peers() override { return inner_.dead_peers(); }
  void mark_broken() noexcept override { inner_.mark_broken(); }

 private:
  static constexpr int kChannelsForWindows = 1000;

  comm::World& inner_;
  comm::MessagingThread& thread_;
  // The inner world makes windows only with communicators of its own.
  std::map<Communicator*, std::unique_ptr<Communicator>> for_windows_;
};

}  // namespace kolo::test
