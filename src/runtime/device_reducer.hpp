#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/device_communicator.hpp"
#include "comm/gpu.hpp"
#include "kolo/task.hpp"
#include "runtime/data_path.hpp"
#include "runtime/reduction_items.hpp"
#include "runtime/ring_traffic.hpp"

namespace kolo::runtime {

/// Puts the reductions of a lane on its stream: packs what runs fused, with scale and cast in one
/// pass, and leaves everything else where it is. Staging memory is used on that stream alone, so
/// that each use of it comes behind the one before. The communicator is ready when a Task begins
/// and when it ends.
class DeviceReducer {
 public:
  /// All arguments outlive the reducer.
  DeviceReducer(const DataPath& path, comm::Gpu& gpu, comm::DeviceCommunicator& communicator,
                comm::DeviceStream stream, RingTraffic& traffic)
      : path_(path), gpu_(gpu), communicator_(communicator), stream_(stream), traffic_(traffic) {}

  /// All-reduces items that were asked for as `request` asks; small ones of one type that follow
  /// one another share a run.
  Task all_reduce(const Request& request, std::span<const ReductionItem> items, JoinedRanks joined);
  /// The same for a reduce-scatter of dimension 0.
  Task reduce_scatter(const Request& request, ReductionItem item, JoinedRanks joined);

  /// Staging memory that was outgrown since the last call; work that uses it may be under way.
  std::vector<std::shared_ptr<std::byte>> take_outgrown() { return std::exchange(outgrown_, {}); }

  std::uint64_t bytes_packed() const { return bytes_packed_; }

 private:
  Task all_reduce_run(const Request& request, std::span<const ReductionItem> items,
                      JoinedRanks joined);
  std::byte* stage(std::size_t bytes);

  const DataPath& path_;
  comm::Gpu& gpu_;
  comm::DeviceCommunicator& communicator_;
  const comm::DeviceStream stream_;
  RingTraffic& traffic_;
  std::shared_ptr<std::byte> staging_;
  std::size_t staging_bytes_ = 0;
  std::vector<std::shared_ptr<std::byte>> outgrown_;
  std::uint64_t bytes_packed_ = 0;
};

}  // namespace kolo::runtime
