#pragma once

#include <span>
#include <vector>

#include "comm/topology.hpp"
#include "kolo/communicator.hpp"
#include "kolo/config.hpp"
#include "kolo/reduction.hpp"
#include "kolo/task.hpp"
#include "ops/registry.hpp"

namespace kolo::runtime {

/// What all ranks start with alike: their knobs, what they choose from, and the process sets.
struct Start {
  const Config& config;
  const ops::Registry& algorithms;
  std::span<const CustomReduction> reductions;
  const std::vector<std::vector<int>>& process_sets;  ///< each ascending
};

/// Compares the starts of all ranks. Collective. Throws InvalidArgument on every rank alike, naming
/// the first thing that differs, the ranks and both values; the log level may differ. The
/// communicator and what `start` refers to outlive the Task.
Task agree_on_start(Communicator& communicator, Start start);

/// Throws InvalidArgument where a knob asks for an algorithm that is not there.
void check_algorithms(const Config& config, const ops::Registry& algorithms);

/// Throws InvalidArgument where a rank's shared memory is too small for the ranks of a node.
void check_staging(const Config& config, const comm::Topology& topology);

}  // namespace kolo::runtime
