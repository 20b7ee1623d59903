#pragma once

#include <chrono>
#include <vector>

#include "programs/program.hpp"

namespace kolo::programs {

/// How a rank comes to know that an operation has ended.
enum class Wait {
  Block,        ///< wait()
  BlockAtOnce,  ///< wait() right after submitting it, the last that its thread submits
  Poll,         ///< wait_for() until it says so
  Look,         ///< is_ready() until it says so
  Drop,         ///< it drops the handle and sees its memory released
};

struct Step {
  int operation = 0;
  std::chrono::microseconds delay{0};  ///< before it is submitted
  int thread = 0;                      ///< 0: the rank's own
  Wait wait = Wait::Block;
  int wait_round = 0;  ///< the round at whose end it is waited for
};

struct RoundPlan {
  std::vector<Step> steps;  ///< in the order of submission, as far as one thread goes
  std::vector<int> waits;   ///< operations, of this or earlier rounds, in this order
};

/// What one rank is free to do otherwise than the others: order, delays, threads, waits. A function
/// of the program and the rank.
std::vector<RoundPlan> plan_of(const Program& program, int rank);

}  // namespace kolo::programs
