#pragma once

#include <chrono>
#include <vector>

#include "programs/program.hpp"

namespace kolo::programs {

/// How a rank waits for the end of an operation.
enum class Wait {
  Block,        ///< wait()
  BlockAtOnce,  ///< wait() right after submitting it, as the thread's last submission
  Poll,         ///< wait_for() until it returns true
  Look,         ///< is_ready() until it returns true
  Drop,         ///< it drops the handle and waits until the memory is released
};

struct Step {
  int operation = 0;
  std::chrono::microseconds delay{0};  ///< before it is submitted
  int thread = 0;                      ///< 0: the rank's own thread
  Wait wait = Wait::Block;
  int wait_round = 0;  ///< the round at whose end the rank waits for it
};

struct RoundPlan {
  std::vector<Step> steps;  ///< in order of submission, within each thread
  std::vector<int> waits;   ///< operations of this or earlier rounds, in order of waiting
};

/// Everything that a rank may do differently from others: order, delays, threads, waits. Depends
/// only on the program and the rank.
std::vector<RoundPlan> plan_of(const Program& program, int rank);

}  // namespace kolo::programs
