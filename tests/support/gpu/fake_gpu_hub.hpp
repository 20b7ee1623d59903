#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/gpu/gpu.hpp"
#include "support/gpu/fake_device_memory.hpp"
#include "support/gpu/fake_groups.hpp"
#include "support/gpu/fake_streams.hpp"
#include "support/gpu/happens_before.hpp"

namespace kolo::test {

/// A kernel of the program. `run` touches only the listed memory, does not call the hub, and owns
/// no object of the hub.
struct FakeKernel {
  std::string name;
  std::vector<ByteRange> reads{};
  std::vector<ByteRange> writes{};
  std::function<void()> run = [] {};
  std::string error{};  ///< not empty: instead it fails with this, and so does every later call
};

struct FakeOptions;

/// The GPUs of all fake ranks, one per rank. Memory is on the heap; streams make progress when
/// polled. Operations compute real values, and work without the necessary ordering is reported as a
/// hazard even if the values are right. What a thread learns by waiting or asking orders its own
/// launches; another thread's, only if events carry it there. Thread-safe.
class FakeGpuHub : public std::enable_shared_from_this<FakeGpuHub> {
 public:
  FakeGpuHub(int ranks, const FakeOptions& options);

  bool late_launches() const { return late_launches_; }
  bool is_one_gpu() const { return is_one_gpu_; }

  /// For the program. A null stream is the default stream.

  /// Throws BackendError beyond the rank's capacity. Freed as by cudaFree, which waits for all work
  /// on the GPU. It is a hazard if the rank does not know that the uses of the memory have ended;
  /// one thread may know and another one free, as the last of several owners.
  std::shared_ptr<std::byte> allocate(int rank, std::size_t bytes);
  /// How many bytes allocate() may hand out to a rank in all; without limit at first.
  void set_capacity(int rank, std::size_t bytes);
  bool has_room(int rank, std::size_t bytes);
  /// Stream-ordered memory, as from a caching allocator: allocated after the work on `stream` so
  /// far.
  std::byte* allocate_on(int rank, comm::DeviceStream stream, std::size_t bytes);
  /// Freed after the work on `streams` so far, of which there is at least one. Never throws.
  void free_on(int rank, std::span<const comm::DeviceStream> streams, std::byte* memory) noexcept;
  std::shared_ptr<CUstream_st> make_stream(int rank);
  std::shared_ptr<CUevent_st> make_event(int rank);
  void record(int rank, comm::DeviceEvent event, comm::DeviceStream stream);
  void wait(int rank, comm::DeviceStream stream, comm::DeviceEvent event);
  bool has_passed(int rank, comm::DeviceEvent event);
  /// Captures work on a stream into a graph, which is never replayed. An event that crosses its
  /// boundary is a hazard, as it makes a real capture fail.
  void begin_capture(int rank, comm::DeviceStream stream);
  void end_capture(int rank, comm::DeviceStream stream);
  bool is_capturing(int rank, comm::DeviceStream stream);
  /// The number of operations on a stream between two events that have passed.
  std::uint64_t steps_between(comm::DeviceEvent first, comm::DeviceEvent last);
  /// Adds a mark of a rank, which lives as long as the result.
  std::shared_ptr<void> mark(int rank, std::string name);
  /// The names of a rank's marks so far; the number of live marks of all ranks.
  std::vector<std::string> marks(int rank);
  int live_marks();
  /// The resources that a rank holds on its GPU now.
  struct Resources {
    int streams = 0;
    int communicators = 0;
    std::size_t bytes = 0;

    bool operator==(const Resources&) const = default;
  };
  Resources resources(int rank);
  /// What the runtime has called on a rank's GPU so far.
  struct Calls {
    int launches = 0;  ///< of collectives; a group counts as one
    int kernels = 0;   ///< others
    int records = 0;   ///< of events
    int waits = 0;     ///< of streams for events
  };
  Calls calls(int rank);
  int launches(int rank) { return calls(rank).launches; }
  /// The number of a rank's allocations.
  int allocations(int rank);
  /// Enqueues `kernel` on a stream. It runs during a poll, at the latest in `synchronize`.
  void kernel(int rank, comm::DeviceStream stream, FakeKernel kernel);
  /// Enqueues work that goes on until `may_end` is set.
  void hold(int rank, comm::DeviceStream stream, std::shared_ptr<const std::atomic<bool>> may_end);
  /// Blocks until the stream is done. Throws TimeoutError after a minute.
  void synchronize(int rank, comm::DeviceStream stream);
  /// The same for all streams of the rank's GPU, and for an event.
  void synchronize_device(int rank);
  void synchronize_event(int rank, comm::DeviceEvent event);
  /// Polls without blocking. The host may rely on the answer, so the graph records it.
  bool is_done(int rank, comm::DeviceStream stream);
  /// Blocks like `synchronize`, but the graph does not record it: later launches are ordered by
  /// streams and events alone.
  void drain(int rank, comm::DeviceStream stream);
  /// Accesses by the host itself, without waiting.
  void copy_to_device(int rank, ByteRange from, std::byte* to);
  void copy_to_host(int rank, const std::byte* from, std::span<std::byte> to);

  /// Runs everything that can run, and returns all hazards so far.
  std::vector<std::string> hazards();
  void report(std::string hazard);

  /// Faults, set before the launch: the `nth` collective of a rank, from 0, fails when it runs, or
  /// never runs.
  void fail_collective(int rank, std::size_t nth, std::string reason);
  void lose_collective(int rank, std::size_t nth);

  /// Blocks a rank's event queries, or its aborts, until unblock(), for at most half a minute: as
  /// if another thread were blocked in CUDA, or a peer did not answer.
  void block_queries(int rank);
  void block_aborts(int rank);
  void unblock(int rank);
  bool is_blocked(int rank);

  /// For FakeDeviceCommunicator.

  std::size_t make_group(int size);
  void join(std::size_t group, int member, int rank);
  bool is_complete(std::size_t group);
  std::string failure_of(std::size_t group, int member);
  void launch(std::size_t group, int member, int rank, FakeLaunch launch);
  void count(int rank, int Calls::* what);
  /// Until the group of calls ends, nothing else may be enqueued on the stream.
  void collect(int rank, comm::DeviceStream stream);
  void end_collecting(int rank, comm::DeviceStream stream);
  bool has_pending(std::size_t group, int member);
  void drop(std::size_t group, int member);
  void leave(int rank);
  void await_abort(int rank) { wait_while_blocked(rank, Blocked::Aborts); }
  /// Before the queries of comm::Gpu; those of the program are never blocked.
  void await_query(int rank) { wait_while_blocked(rank, Blocked::Queries); }

 private:
  void free(int rank, std::byte* memory) noexcept;
  /// Runs streams until `has_finished` is true, which is called under the lock. `stream` is only
  /// for the text of the TimeoutError.
  void run_until(int rank, comm::DeviceStream stream, const std::function<bool()>& has_finished);
  enum class Blocked : std::uint8_t { Nothing, Queries, Aborts };
  void wait_while_blocked(int rank, Blocked what);
  void check_not_captured(int rank, comm::DeviceStream stream, const char* operation);
  void check_not_collecting(int rank, comm::DeviceStream stream, const std::string& operation);
  /// Whether all memory of `operation` is on the rank's GPU, which may be that of all ranks;
  /// reports a hazard if not.
  bool check_memory(int rank, const MemoryOperation& operation);

  const bool late_launches_;
  const bool is_one_gpu_;
  std::mutex lock_;
  FakeStreams streams_;
  FakeDeviceMemory memory_;
  FakeGroups groups_;
  std::vector<std::pair<int, std::string>> marks_;  // with their ranks
  int live_marks_ = 0;
  std::vector<Calls> calls_;                                 // by rank
  std::vector<int> allocations_;                             // by rank
  std::vector<Resources> resources_;                         // by rank
  std::vector<std::size_t> capacities_;                      // by rank
  std::vector<Blocked> blocked_;                             // by rank
  std::set<std::pair<int, comm::DeviceStream>> captured_;    // by rank
  std::set<std::pair<int, comm::DeviceStream>> collecting_;  // by rank
};

}  // namespace kolo::test
