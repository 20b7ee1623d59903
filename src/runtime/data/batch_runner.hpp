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
#include "runtime/data/operation.hpp"
#include "runtime/data/reducer.hpp"
#include "runtime/protocol/bits.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// Moves the data of a lane: turns agreed batches into calls of algorithms. How reductions run is
/// the Reducer's part.
class BatchRunner {
 public:
  using Operations = std::vector<std::shared_ptr<Operation>>;

  /// All arguments outlive the runner.
  BatchRunner(comm::World& world, const DataPath& path);

  /// Runs one batch: several operations only where they are all-reduces that may be fused. One
  /// batch at a time, in the same order on all ranks. `have_some_joined`: some ranks may take part
  /// with what make_identity gave them.
  Task run(Operations operations, bool have_some_joined);

  /// The part of a rank that has joined in `request`: memory with what changes nothing.
  std::shared_ptr<Operation> make_identity(const Request& request) const;

  std::uint64_t bytes_sent() const;
  std::uint64_t bytes_packed() const { return reducer_.bytes_packed(); }

 private:
  Task run_one(Operation& operation, const Bits& absent);
  Task broadcast(const Request& request, std::size_t index, TensorMemory& memory,
                 const Bits& absent);
  Task all_gather(const TensorType& type, TensorMemory& memory);
  Task all_gather_in_place(const Request& request, TensorMemory& memory, const Bits& absent);
  Task all_to_all(const Request& request, std::size_t index, TensorMemory& memory,
                  const Bits& absent);
  Task share_memory(Operation& operation);
  static std::span<std::byte* const> reachable(const TensorMemory& memory, const Bits& absent);
  const Algorithm& choose(const CollectiveCall& call, Collective collective,
                          std::size_t bytes) const;

  comm::World& world_;
  const DataPath& path_;
  Reducer reducer_;
  // So far, the same on all ranks.
  int process_sets_ = 0;     // added
  int shared_memories_ = 0;  // asked for
};

}  // namespace kolo::runtime
