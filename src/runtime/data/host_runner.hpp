#pragma once

#include <cstdint>
#include <memory>

#include "comm/world.hpp"
#include "kolo/task.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/data/host_backend.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// Runs the batches of a lane that are not on GPUs, and operations that change process sets.
class HostRunner {
 public:
  /// All arguments outlive the runner.
  HostRunner(comm::World& world, const DataPath& path)
      : world_(world), path_(path), backend_(path) {}

  /// Runs one batch, as dispatch() does. `have_some_joined`: some ranks may take part with
  /// operations from make_stand_in.
  Task run(Operations batch, bool have_some_joined);
  /// See make_stand_in.
  std::shared_ptr<Operation> make_stand_in(const Request& request) const;

  std::uint64_t bytes_sent() const;
  std::uint64_t bytes_packed() const { return backend_.bytes_packed(); }

 private:
  Task share_memory(Operation& operation);

  comm::World& world_;
  const DataPath& path_;
  HostBackend backend_;
  // Counts so far; the same on all ranks.
  int process_sets_ = 0;     // added
  int shared_memories_ = 0;  // requested
};

}  // namespace kolo::runtime
