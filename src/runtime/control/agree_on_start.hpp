#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kolo/codec.hpp"
#include "kolo/communicator.hpp"
#include "kolo/config.hpp"
#include "kolo/reduction.hpp"
#include "kolo/task.hpp"
#include "ops/registry.hpp"

namespace kolo::runtime {

/// Settings, process sets and the program's additions, which must be equal on all ranks.
struct Start {
  const Config& config;
  const ops::Registry& algorithms;
  std::span<const CustomReduction> reductions;
  std::span<const Codec* const> codecs;
  const std::vector<std::vector<int>>& process_sets;  ///< each ascending
};

/// Compares `start` among all ranks. Collective. Throws InvalidArgument on all ranks alike, naming
/// the first difference, the ranks and both values; the log level may differ. The communicator and
/// what `start` refers to outlive the Task.
Task agree_on_start(Communicator& communicator, Start start);

/// Fills `all` with `counts[rank]` bytes of every rank, in rank order. Collective; the arguments
/// outlive the Task.
Task gather_bytes(Communicator& communicator, const std::byte* own, std::byte* all,
                  const std::vector<std::size_t>& counts);

}  // namespace kolo::runtime
