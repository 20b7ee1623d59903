#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/gpu/device_communicator.hpp"
#include "kolo/dtype.hpp"
#include "kolo/task.hpp"
#include "runtime/data/backend.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/device/device_context.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// How a reduction runs on GPUs.
///
/// Through the communicator:
///   1 elements are multiplied by `before` and converted to `wire`, into a staging buffer if the
///     reduction is staged, else into the output;
///   2 they are combined;
///   3 they are multiplied by `after`, divided by `divisor` and converted back, if that changes
///     anything.
/// By direct exchange, step 2 multiplies by `before` and `after`.
struct DevicePlan {
  DType wire = DType::Float32;
  bool is_direct = false;
  bool is_staged = false;
  double before = 1.0;
  ReduceOp op = ReduceOp::Sum;
  double after = 1.0;
  std::int64_t divisor = 1;

  /// Whether step 3 changes elements of `dtype` in place.
  bool changes(DType dtype) const { return wire != dtype || after != 1.0 || divisor != 1; }
};

/// What a plan depends on in addition to the request.
struct DeviceSituation {
  DType dtype;
  DType payload;                ///< the type that `dtype` is compressed to, or `dtype`
  int size;                     ///< that averages divide by
  bool needs_staging = false;   ///< whatever the types are
  bool prefers_direct = false;  ///< sum floating types in rank order
};

/// Plans a reduction other than Custom and Adasum. Staged elements are scaled while they are
/// copied. Other floating-point sums are scaled on their way to the output, before they are added
/// up, so that sums of float16 do not overflow. A reduce-scatter keeps its input: it scales its
/// part of the sum, but is staged for float16 and what the program prescales. int16, which NCCL
/// cannot reduce, is sent as int32. Averages follow ops::plan_reduction.
/// @throws InvalidArgument for reductions that are not defined
DevicePlan plan_on_device(const Request& request, const DeviceSituation& situation);

struct FusedTensors;  // one tensor, or several that are reduced as one

/// Launches the collectives of an engine on its stream: through the communicator of GPUs, or by
/// direct exchange. Reductions that are fused or converted are packed in staging
/// memory, with scaling in the same pass; all others run in place. What goes through the
/// communicator is launched in one group, as are tensors that are only moved, so a batch of one
/// dtype costs one pack, one launch and one unpack. The communicator is ready when a Task begins
/// and when it ends.
class DeviceBackend final : public Backend {
 public:
  /// All arguments outlive the backend.
  DeviceBackend(const SetContext& set, comm::Gpu& gpu, comm::DeviceCommunicator& communicator,
                comm::DeviceStream stream, const std::shared_ptr<CUevent_st>& launch,
                RingTraffic& traffic)
      : set_(set),
        staging_(set, gpu),
        device_{gpu, communicator, stream, launch, traffic, staging_} {}
  DeviceBackend(const DeviceBackend&) = delete;  // its parts refer to one another
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  Task make_room(std::span<const Reductions> reductions) override;
  Task reduce(std::span<const Reductions> reductions) override;
  Task move(Collective collective, std::span<const Move> moves) override;
  bool may_allocate(const Operation& operation) override;
  void await_allocation(const Operation& operation) override;

  /// Call it after a batch: returns owners of outgrown memory, to be kept until what was launched
  /// so far has completed.
  std::vector<std::shared_ptr<void>> take_outgrown() { return staging_.take_outgrown(); }

 private:
  /// What uses the staging memory at the same time: an exchange, or a group.
  using Stage = std::vector<FusedTensors>;
  /// More staging memory than this is not worth one group less.
  static constexpr std::size_t kMostStaged = std::size_t{64} << 20;

  DevicePlan plan_of(const Reductions& reductions, DType dtype, bool is_packed) const;
  FusedTensors fuse(const Reductions& reductions, std::size_t first) const;
  std::vector<Stage> stages_of(std::span<const Reductions> reductions) const;
  std::size_t room_for(const Stage& stage) const;
  Task reduce_group(const Stage& group);
  void launch(const FusedTensors& fused, std::byte* place);
  void launch_move(Collective collective, const CollectiveCall& call, std::size_t bytes);

  const SetContext& set_;
  DeviceStaging staging_;
  const DeviceContext device_;
  Pool<CUevent_st> events_;
};

}  // namespace kolo::runtime
