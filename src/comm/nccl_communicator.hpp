#pragma once

#include <memory>
#include <string>

#include "comm/device_communicator.hpp"
#include "comm/nccl_handles.hpp"
#include "kolo/communicator.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// A DeviceCommunicator over NCCL, which is used without blocking throughout.
///
/// NCCL_ALGO is set to Ring before the first one is made, unless it is set already: with several
/// algorithms NCCL may choose by measured times, and sums would differ from run to run.
class NcclCommunicator final : public DeviceCommunicator {
 public:
  /// Makes one among the ranks of `communicator`, which all have a GPU of their own: here the CUDA
  /// device `device`. Collective; uses the communicator's tag `tag` meanwhile. When the Task has ended
  /// `made` is set. Throws BackendError where NCCL fails; given up, it aborts on this rank.
  static Task make(Communicator& communicator, int tag, int device,
                   std::unique_ptr<DeviceCommunicator>& made);

  /// Starts to join; `ready` says when that is done.
  NcclCommunicator(int rank, int size, int device, const ncclUniqueId& id);
  NcclCommunicator(const NcclCommunicator&) = delete;  // one rank has one
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  /// Ends in good order if nothing has failed and the others do the same within a second.
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool ready() override;
  void all_reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                  DeviceStream stream) override;
  void abort(const std::string& reason) noexcept override;

 private:
  void require_alive() const;

  int rank_;
  int size_;
  NcclComm communicator_;
  std::string reason_;  // why it was aborted
};

}  // namespace kolo::comm
