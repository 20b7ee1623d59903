#pragma once

#include <memory>

#include "comm/world.hpp"
#include "kolo/metrics.hpp"
#include "kolo/task.hpp"
#include "runtime/data/host_backend.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/ordered_communicator.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// Runs the batches of an engine that are not on GPUs, and operations that change process sets.
class HostRunner {
 public:
  /// All arguments outlive the runner.
  HostRunner(comm::World& world, const SetContext& set) : world_(world), set_(set), backend_(set) {}

  /// Runs one batch, as dispatch() does. `have_some_joined`: some ranks may take part with
  /// operations from make_stand_in.
  Task run(Operations batch, bool have_some_joined);
  /// Runs one operation of a set whose operations are matched by order; `order` is the
  /// communicator of its data. Throws OrderBroken.
  Task run_in_order(Operations one, OrderedCommunicator& order);
  /// See make_stand_in.
  std::shared_ptr<Operation> make_stand_in(const Request& request) const;

  Metrics::Bytes bytes() const;

 private:
  Task run(Operations batch, bool have_some_joined, Communicator& of_world);
  Task find_peer_buffers(Operation& operation, OrderedCommunicator& order);
  Task share_memory(Operation& operation, Communicator& of_world);

  comm::World& world_;
  const SetContext& set_;
  HostBackend backend_;
  // Counts so far; the same on all ranks.
  int process_sets_ = 0;     // added
  int shared_memories_ = 0;  // requested
};

}  // namespace kolo::runtime
