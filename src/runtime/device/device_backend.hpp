#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kolo/task.hpp"
#include "runtime/data/backend.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/data/reduction_items.hpp"
#include "runtime/device/coded_exchange.hpp"
#include "runtime/device/device_exchange.hpp"
#include "runtime/device/device_path.hpp"
#include "runtime/device/device_plan.hpp"
#include "runtime/device/device_staging.hpp"
#include "runtime/device/event_pool.hpp"

namespace kolo::runtime {

/// Launches the collectives of a lane on its stream: through the communicator of GPUs,
/// DeviceExchange or CodedExchange. Reductions that are fused or converted are packed in staging
/// memory, with scaling in the same pass. All others run in place, in one group of the
/// communicator, as do tensors that are only moved. The communicator is ready when a Task begins
/// and when it ends.
class DeviceBackend final : public Backend {
 public:
  /// All arguments outlive the backend.
  DeviceBackend(const DataPath& path, comm::Gpu& gpu, comm::DeviceCommunicator& communicator,
                comm::DeviceStream stream, RingTraffic& traffic)
      : path_(path), staging_(gpu), device_{gpu, communicator, stream, traffic, staging_} {}
  DeviceBackend(const DeviceBackend&) = delete;  // its parts refer to one another
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  Task all_reduce(const Request& request, std::span<const ReductionItem> items,
                  JoinedRanks joined) override;
  Task reduce_scatter(const Request& request, std::span<const ReductionItem> items,
                      std::span<const std::vector<std::size_t>> counts,
                      JoinedRanks joined) override;
  Task move(Collective collective, std::span<const Move> moves) override;
  void await_allocation(const Operation& operation) override;

  /// Call it after a batch: returns owners of outgrown memory, to be kept until what was launched
  /// so far has completed.
  std::vector<std::shared_ptr<void>> take_outgrown() { return staging_.take_outgrown(); }

  std::uint64_t bytes_packed() const { return bytes_packed_; }

 private:
  /// A reduction of one tensor without staging.
  struct InPlace {
    DevicePlan plan;
    DType dtype;
    const std::byte* input;
    std::byte* output;
    std::vector<std::size_t> counts;  // reduce-scatter
    std::size_t kept;                 // elements of the output
  };

  DevicePlan plan_of(const Request& request, std::span<const ReductionItem> items,
                     JoinedRanks joined) const;
  Task all_reduce_staged(const DevicePlan& plan, std::span<const ReductionItem> items);
  Task reduce_scatter_staged(const DevicePlan& plan, ReductionItem item,
                             std::span<const std::size_t> counts);
  Task reduce_in_place(std::span<const InPlace> reductions);
  void launch_move(Collective collective, const CollectiveCall& call, std::size_t bytes);
  const base::CodecFormat* format_of(const Request& request, DType dtype) const;
  double coded_scale(const Request& request, JoinedRanks joined) const;

  const DataPath& path_;
  DeviceStaging staging_;
  const DevicePath device_;
  DeviceExchange exchange_{device_};
  CodedExchange coded_exchange_{device_};
  EventPool events_{&comm::Gpu::make_event};
  std::uint64_t bytes_packed_ = 0;
};

}  // namespace kolo::runtime
