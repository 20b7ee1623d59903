#pragma once

#include <cstdint>
#include <vector>

#include "insight/recorder.hpp"
#include "kolo/communicator.hpp"
#include "kolo/task.hpp"

namespace kolo::runtime {

/// What the ranks' traces have in common.
struct CommonClock {
  insight::Event::Time to_world_clock{0};  ///< from this rank's clock to that of rank 0
  std::uint64_t job = 0;                   ///< drawn by rank 0
};

/// Estimates the difference between this rank's clock and that of rank 0, to half of the shortest
/// round trip; ranks on rank 0's node share its clock. Collective. The arguments outlive the Task.
Task agree_on_clock(Communicator& communicator, const std::vector<int>& node_of_rank,
                    CommonClock& clock);

}  // namespace kolo::runtime
