#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/gpu/device_communicator.hpp"
#include "comm/gpu/gpu.hpp"
#include "kolo/task.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/ring_traffic.hpp"
#include "runtime/device/device_backend.hpp"
#include "runtime/device/event_pool.hpp"
#include "runtime/device/launch_order.hpp"
#include "runtime/protocol/bits.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// Moves the data of a lane that lies on GPUs: puts agreed batches on a stream of its own, in the
/// agreed order, and waits for none of them. The stream waits for each operation's `ready` before
/// its work, and passes its `done` after it; whatever an operation keeps alive is kept until then.
///
/// GPUs are connected when the first batch runs. What is not said otherwise is for the thread that
/// drives the lane.
class DeviceRunner {
 public:
  /// All arguments outlive the runner; messages of `path` are its alone. Where a rank takes part
  /// without tensors of its own, it uses the GPU with the number of its `local_rank`. Two ranks may
  /// use one GPU only where KOLO_SHARE_GPU says so.
  DeviceRunner(comm::Gpus& gpus, const DataPath& path, LaunchOrder& order, int local_rank);

  /// Makes the operation wait for what is on its stream now. Its GPU is this rank's from then on:
  /// throws InvalidArgument where that is another one already, BackendError where there is none.
  /// Any thread.
  void prepare(Operation& operation);
  /// What is put on the operation's stream from now on waits for it. Once it has been launched. Any
  /// thread.
  void order_after(const Operation& operation);

  /// Launches one batch, as HostRunner::run runs it. `is_ordered`, the same on all ranks: in the
  /// one order of all sets that overlap.
  Task run(Operations batch, bool have_some_joined, bool is_ordered);
  /// See make_stand_in.
  std::shared_ptr<Operation> make_stand_in(const Request& request);

  /// Lets go of what the GPU is through with. Throws BackendError where anything has failed there,
  /// or has not ended long after its deadline.
  void retire();
  /// Nothing that was launched is under way any more, as far as retire() knows.
  bool is_idle() const { return launched_.empty(); }
  /// Ends on this rank what is under way.
  void abort(const std::string& reason) noexcept;

  std::uint64_t bytes_sent() const { return traffic_.bytes(); }
  std::uint64_t bytes_packed() const { return backend_ ? backend_->bytes_packed() : 0; }
  /// That batches took on the GPU, of those that retire() has let go.
  double seconds() const { return seconds_; }

 private:
  comm::Gpu& use(int gpu);
  int own_gpu();
  Task connect(const Request& first);
  Task require_own_gpus(const Request& first);
  Operation::Clock::time_point give_up_time(const Operations& batch) const;

  struct Launched {
    std::shared_ptr<CUevent_st> began;
    std::shared_ptr<CUevent_st> done;
    std::shared_ptr<void> mark;  // for profilers
    Operation::Clock::time_point give_up_at;
    Operations batch;
    std::vector<std::shared_ptr<std::byte>> outgrown;
  };

  comm::Gpus& gpus_;
  const DataPath& path_;
  LaunchOrder& order_;
  const int local_rank_;
  std::mutex opening_;
  std::shared_ptr<comm::Gpu> gpu_;  // with its stream made once, before anything else is done there
  std::shared_ptr<CUstream_st> stream_;
  EventPool events_{&comm::Gpu::make_event};
  EventPool timers_{&comm::Gpu::make_timer};
  RingTraffic traffic_;
  std::unique_ptr<comm::DeviceCommunicator> communicator_;
  std::optional<DeviceBackend> backend_;
  std::deque<Launched> launched_;  // in their order
  double seconds_ = 0.0;
};

}  // namespace kolo::runtime
