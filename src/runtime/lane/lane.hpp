#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "base/home_process.hpp"
#include "comm/world.hpp"
#include "kolo/communicator.hpp"
#include "kolo/config.hpp"
#include "kolo/task.hpp"
#include "runtime/control/control_mailbox.hpp"
#include "runtime/control/loss_watch.hpp"
#include "runtime/control/tree_board.hpp"
#include "runtime/data/batch_runner.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/device/device_runner.hpp"
#include "runtime/lane/batch_queue.hpp"
#include "runtime/lane/lost_batches.hpp"
#include "runtime/lane/tensor_queue.hpp"
#include "runtime/lane/wake_up.hpp"
#include "runtime/protocol/coordinator.hpp"
#include "runtime/protocol/header_board.hpp"

namespace kolo::runtime {

/// One process set: its queue, its protocol, its data, independent of all other lanes. What lies on
/// GPUs is agreed on with all else, and then moves by itself: data on one kind of device does not
/// wait for data on the other.
///
/// Whoever holds the turn drives the lane: the progress thread, or a thread that waits on one of
/// its operations, so that nobody need be woken for the data to move. A turn never blocks, and
/// moves some chunks at most.
class Lane {
 public:
  /// What moves data between GPUs.
  struct DeviceParts {
    comm::Gpus& gpus;
    LaunchOrder& launch_order;
    DataPath data;          ///< with a communicator of its own
    bool is_added = false;  ///< a set other than the world, with which it overlaps
  };
  struct Parts {
    DataPath data;
    std::unique_ptr<Communicator> control{};         ///< among the members, for the protocol
    std::shared_ptr<SharedWindow> control_window{};  ///< null: the control plane goes by messages
    std::optional<DeviceParts> device{};             ///< none: a build for CPUs alone
  };

  /// What is passed by reference lives until `stop` has returned. Handles keep the lane longer.
  Lane(Parts parts, comm::World& world);
  ~Lane();

  /// Throws InvalidArgument for what no rank can run: unknown compressors and reductions.
  void check(const Request& request) const { data_.check(request); }

  /// Before it is submitted: orders an operation on a GPU behind what is on its stream. Throws
  /// InvalidArgument or BackendError where this rank cannot use that GPU.
  void prepare(Operation& operation);
  /// What is put on the operation's stream from now on waits for its result. Once it has ended.
  void order_after(const Operation& operation);

  /// Queues an operation. Throws InvalidArgument where one of that name is in flight, ShutdownError
  /// after `stop`. Everything else that is wrong is found later and ends the operation.
  void submit(std::shared_ptr<Operation> operation);

  /// The same, and drives the lane until it has ended: nobody need be woken for that.
  void run(const std::shared_ptr<Operation>& operation);

  /// Queues a join behind what was submitted so far. Throws InvalidArgument where one is in flight.
  void join(std::shared_ptr<Operation> operation);

  /// Drives the lane until the operation has ended or `until` has come; true if it has ended.
  bool wait(const Operation& operation, Operation::Clock::time_point until);

  /// One turn, unless a caller drives. True if there was progress.
  bool try_turn();
  /// Something is queued, pending or running, and no caller drives it.
  bool needs_driving() const { return callers_ == 0 && queue_.in_flight() > 0; }
  /// Where the progress thread sleeps while nothing does.
  WakeUp& wake_up() { return wake_up_; }

  /// Leaves the set: closes it on all ranks. Drives until nothing is pending or running here.
  void shut_down();
  /// Nothing can be submitted or is driven any more; `why` completes "process set world: ".
  void stop(std::string why);
  /// The last words of a dying process: its text reaches all ranks. Called by any thread, in a turn
  /// or not; not heard where another thread stays in a turn all the time that peers are given.
  void publish_end(const std::string& how);
  /// Whether this process made the lane. A forked child has a copy, which must not act for it.
  bool is_at_home() const { return home_.is_here(); }

  int rank() const { return data_.communicator->rank(); }
  int size() const { return data_.communicator->size(); }
  /// Names for unnamed operations: the same on all ranks that make the same calls in order.
  std::string next_name(std::string_view kind) { return queue_.next_name(kind); }

  struct Metrics {
    Coordinator::Counters protocol;
    std::uint64_t header_bytes = 0;  ///< shown or sent by this rank
    std::uint64_t bytes_sent = 0;    ///< payload given to messages or moved through windows
    std::uint64_t bytes_packed = 0;  ///< copied by Kolo to fuse or compress
    double gpu_seconds = 0.0;        ///< that batches took on the GPU
  };
  Metrics metrics();

 private:
  using Clock = Operation::Clock;
  class Caller;
  class Driver;

  static Time to_time(Clock::time_point point) {
    return point == Clock::time_point::max() ? kNever : Time{point.time_since_epoch()};
  }
  bool try_turn(int looks);
  void require_home() const;
  bool turn(int looks);
  bool progress(Clock::time_point now, int looks);
  bool take_submissions(Clock::time_point now);
  bool read_mail();
  bool advance_protocol(Clock::time_point now);
  void carry_out(Coordinator::Actions actions);
  void start(const Coordinator::Batch& batch);
  bool advance(BatchQueue& batches, Clock::time_point now, int looks);
  bool is_data_at_rest() const;
  bool have_all_left();
  void declare_lost(const HeaderBoard::Loss& loss);
  bool end_lost_batches(Clock::time_point now);
  void give_up_silent_rank();
  void complete(const std::shared_ptr<Operation>& operation, std::exception_ptr error);
  int world_rank(int rank) const { return data_.world_ranks[static_cast<std::size_t>(rank)]; }

  const std::string name_;  // of the process set
  const Config& config_;
  const std::chrono::nanoseconds spin_;  // of callers
  comm::World& world_;
  const HomeProcess home_;
  WakeUp wake_up_;

  std::mutex turn_;
  std::atomic<std::thread::id> driver_{};  // who is in a turn

  // Under the turn.
  DataPath data_;
  std::optional<DataPath> device_data_;
  std::unique_ptr<Communicator> control_;
  ControlMailbox mailbox_;
  TreeBoard* tree_board_ = nullptr;  // the board, where it goes by messages
  std::unique_ptr<HeaderBoard> board_;
  std::optional<LossWatch> watch_;
  Coordinator coordinator_;
  std::shared_ptr<BatchRunner> runner_;
  std::unordered_map<UseId, std::shared_ptr<Operation>> operations_;
  std::shared_ptr<DeviceRunner> device_runner_;  // null: a build for CPUs alone
  BatchQueue running_;
  BatchQueue launching_;  // those on GPUs
  LaunchOrder* launch_order_ = nullptr;
  bool overlaps_ = false;  // with other sets, from the agreed order's present place on
  std::optional<HeaderBoard::Loss> loss_;
  LostBatches lost_batches_;
  bool has_left_ = false;
  bool has_taken_leave_ = false;  // and so have all others
  bool is_stopped_ = false;       // what is passed by reference may be gone
  bool needs_peers_ = false;      // something is in flight, or this rank wants to leave

  TensorQueue queue_;
  std::mutex ends_;
  std::condition_variable ended_;
  std::atomic<int> callers_{0};
};

}  // namespace kolo::runtime
