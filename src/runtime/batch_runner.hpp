#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/world.hpp"
#include "compression/registry.hpp"
#include "kolo/communicator.hpp"
#include "kolo/config.hpp"
#include "kolo/shared_window.hpp"
#include "kolo/task.hpp"
#include "ops/registry.hpp"
#include "runtime/operation.hpp"
#include "runtime/request.hpp"

namespace kolo::runtime {

/// Moves the data of a lane: turns agreed batches into calls of algorithms. Packs what runs fused,
/// converts what is compressed or averaged in a wider type, and leaves everything else where it is.
class BatchRunner {
 public:
  using Operations = std::vector<std::shared_ptr<Operation>>;

  /// What it chooses from; the same on all ranks.
  struct Choices {
    const ops::Registry& algorithms;
    const compression::Registry& compressors;
  };

  /// `staging` may be null: then nothing can be shared. All arguments outlive the runner.
  BatchRunner(comm::World& world, Communicator& communicator, SharedWindow* staging,
              std::span<const int> world_ranks, Choices choices, const Config& config);

  /// Runs one batch: several operations only where they are all-reduces that may be fused. One batch
  /// at a time, in the same order on all ranks.
  Task run(Operations operations);

  /// Throws InvalidArgument for what cannot run on any rank. May be called by any thread.
  void check(const Request& request) const;

  std::uint64_t bytes_sent() const;
  std::uint64_t bytes_packed() const { return bytes_packed_; }

 private:
  struct Reducible {
    const std::byte* input;
    std::byte* output;
    std::size_t count;
    std::span<std::byte* const> peer_buffers;
  };

  /// Between a tensor and `wire_`, where the two differ in type.
  struct Passage {
    DType dtype;
    DType wire;
    const Compressor* compressor;  ///< null: plain conversion
  };

  Task all_reduce_fused(const Operations& operations);
  Task all_reduce(const Request& request, Reducible tensor);
  Task to_wire(Passage passage, const std::byte* tensor, std::size_t count);
  Task from_wire(Passage passage, std::byte* tensor, std::size_t count);
  Task broadcast(Operation& operation);
  Task all_gather(Operation& operation);
  Task share_memory(Operation& operation);
  Task gather_counts(std::size_t own, std::vector<std::size_t>& all);
  CollectiveCall make_call() const;
  const Algorithm& choose(Collective collective, std::size_t bytes, bool has_peer_buffers) const;

  comm::World& world_;
  Communicator& communicator_;
  SharedWindow* staging_;
  std::span<const int> world_ranks_;
  Choices choices_;
  const Config& config_;
  std::vector<std::byte> fused_;  // of the running batch; kept, so that steady programs reuse it
  std::vector<std::byte> wire_;
  std::uint64_t bytes_packed_ = 0;
};

}  // namespace kolo::runtime
