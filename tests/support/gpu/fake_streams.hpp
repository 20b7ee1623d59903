#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "comm/gpu/gpu.hpp"
#include "support/gpu/happens_before.hpp"

namespace kolo::test {

using comm::DeviceEvent;
using comm::DeviceStream;

/// Streams and events of all ranks' GPUs. Nothing runs by itself: each poll runs some of the work
/// that can run, on random streams, so work that is not waited for has rarely finished. Not
/// thread-safe.
class FakeStreams {
 public:
  using Timeline = HappensBefore::Timeline;
  /// Advances an operation at the head of its stream; true once it is done.
  using Poll = std::function<bool(Timeline)>;

  FakeStreams(int ranks, std::uint64_t seed);

  HappensBefore& graph() { return graph_; }
  /// Of the calling thread. What it knows orders its own launches alone.
  Timeline host(int rank);
  /// What the rank's threads know, all of them together.
  VectorClock known_to_hosts(int rank) const;
  /// The number of the next launch, or of the host's next own access.
  std::uint64_t next_order() { return ++last_order_; }

  DeviceStream open_stream(int rank);
  /// A stream whose operations run after all work on `others` so far, which are on the same GPU.
  DeviceStream open_stream_behind(int rank, std::span<const DeviceStream> others);
  /// Work already on it still runs.
  void close_stream(DeviceStream stream);
  DeviceEvent make_event();
  void destroy_event(DeviceEvent event) { events_.erase(event); }

  /// From now on the GPU does nothing more, and all of the following throw BackendError with
  /// `error`: an error that a kernel meets stays with the process.
  void fail(int rank, std::string error);
  bool has_failed(int rank) const { return !at(rank).error.empty(); }
  void require_no_failure(int rank, const char* operation) const;

  /// For all of the following, null is the default stream of the rank's GPU. They throw
  /// BackendError for unknown streams and events.
  void put(int rank, DeviceStream stream, std::string name, Poll poll);
  void put_operation(int rank, DeviceStream stream, MemoryOperation operation,
                     std::function<void()> run);
  void record(int rank, DeviceEvent event, DeviceStream stream);
  void wait(int rank, DeviceStream stream, DeviceEvent event);
  /// The number of operations on the stream between two events that have passed.
  std::uint64_t steps_between(DeviceEvent first, DeviceEvent last);

  /// Polls, and updates the calling thread's timeline.
  bool has_passed(int rank, DeviceEvent event);
  bool is_done(int rank, DeviceStream stream);
  bool is_done(int rank);  ///< on all streams of the rank's GPU
  /// Polls without updating any timeline.
  bool is_empty(int rank, DeviceStream stream);
  bool is_idle(int rank) const;  ///< all streams of the rank's GPU, which may have failed
  /// The name of the operation at the stream's head; empty if the stream is done.
  std::string head_of(int rank, DeviceStream stream);

  void run_some();
  void run_all();

 private:
  struct Recording {
    bool is_done = false;
    std::uint64_t step = 0;  // position in its stream
    VectorClock clock;
  };
  struct Event {
    std::shared_ptr<Recording> last;  // null until first recorded
  };
  struct Item {
    std::string name;
    VectorClock launched;  // clock of the thread at the launch
    Poll poll;
  };
  struct Stream {
    int rank;
    Timeline timeline;
    bool is_open = true;
    std::uint64_t steps = 0;  // done so far
    std::deque<Item> items;
  };
  struct Rank {
    std::map<std::uint64_t, Timeline> hosts{};  // by the number of the thread
    DeviceStream default_stream = nullptr;
    int streams = 0;      // opened so far
    std::string error{};  // empty: its GPU works
  };

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  Stream& find(int rank, DeviceStream stream, const char* operation);
  Event& find(DeviceEvent event, const char* operation);
  bool run_one();

  HappensBefore graph_;
  std::vector<Rank> ranks_;
  std::map<DeviceStream, std::unique_ptr<Stream>> streams_;
  std::map<DeviceEvent, std::unique_ptr<Event>> events_;
  std::mt19937_64 random_;
  std::uint64_t last_order_ = 0;
};

}  // namespace kolo::test
