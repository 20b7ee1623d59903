#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kolo/task.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/data/reduction_items.hpp"
#include "runtime/data/ring_traffic.hpp"
#include "runtime/device/device_exchange.hpp"
#include "runtime/device/device_path.hpp"
#include "runtime/device/device_staging.hpp"

namespace kolo::runtime {

/// Puts the reductions of a lane on its stream: packs what runs fused, with scale and cast in one
/// pass, and leaves everything else where it is. The communicator is ready when a Task begins and
/// when it ends.
class DeviceReducer {
 public:
  /// All arguments outlive the reducer.
  DeviceReducer(const DataPath& path, comm::Gpu& gpu, comm::DeviceCommunicator& communicator,
                comm::DeviceStream stream, RingTraffic& traffic)
      : path_(path), staging_(gpu), device_{gpu, communicator, stream, traffic, staging_} {}
  DeviceReducer(const DeviceReducer&) = delete;  // its parts refer to one another
  DeviceReducer& operator=(const DeviceReducer&) = delete;

  /// All-reduces items that were asked for as `request` asks; small ones of one type that follow
  /// one another share a run.
  Task all_reduce(const Request& request, std::span<const ReductionItem> items, JoinedRanks joined);
  /// The same for a reduce-scatter of dimension 0.
  Task reduce_scatter(const Request& request, ReductionItem item, JoinedRanks joined);

  /// Staging memory that was outgrown since the last call; work that uses it may be under way.
  std::vector<std::shared_ptr<std::byte>> take_outgrown() { return staging_.take_outgrown(); }

  std::uint64_t bytes_packed() const { return bytes_packed_; }

 private:
  DevicePlan plan_of(const Request& request, DType dtype, JoinedRanks joined, bool is_fused) const;
  Task all_reduce_run(const DevicePlan& plan, std::span<const ReductionItem> items);
  Task reduce_scatter_rows(const DevicePlan& plan, ReductionItem item,
                           std::span<const std::size_t> counts);

  const DataPath& path_;
  DeviceStaging staging_;
  const DevicePath device_;
  DeviceExchange exchange_{device_};
  std::uint64_t bytes_packed_ = 0;
};

}  // namespace kolo::runtime
