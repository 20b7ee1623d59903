#include <string>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "train/gradients/step_reductions.hpp"

namespace kolo::test::step_phase_test {

using train::StepCall;
using train::StepPhases;

/// The error of a call; empty if it is allowed.
std::string error_of(const StepPhases& phases, StepCall call) {
  try {
    phases.require(call);
    return {};
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(StepPhaseTest, InFlight_RefusesEveryCallAndSaysWhatToDo) {
  StepPhases reducing;
  reducing.submit();
  StepPhases failed = reducing;
  failed.fail();
  for (const StepPhases& phases : {reducing, failed}) {
    EXPECT_EQ(error_of(phases, StepCall::Join),
              "DistributedOptimizer: join() while gradients are being reduced. Call step() or "
              "zero_grad() first.");
    EXPECT_EQ(error_of(phases, StepCall::RegisterBucketHook),
              "DistributedOptimizer: register_bucket_hook() while gradients are being reduced. "
              "Call it before backward().");
    EXPECT_EQ(error_of(phases, StepCall::LocalStep),
              "DistributedOptimizer: step() under skip_synchronize() while gradients are being "
              "reduced. Call synchronize() before, or run backward() under no_sync().");
    EXPECT_NE(error_of(phases, StepCall::Load), "");
  }
}

TEST(StepPhaseTest, Synchronized_RefusesLoadAlone) {
  StepPhases phases;
  phases.submit();
  phases.finish(true);
  EXPECT_EQ(
      error_of(phases, StepCall::Load),
      "DistributedOptimizer: load() while gradients are reduced and not used yet. Call step() "
      "or zero_grad() first.");
  EXPECT_EQ(error_of(phases, StepCall::Join), "");
  EXPECT_EQ(error_of(phases, StepCall::RegisterBucketHook), "");
  EXPECT_EQ(error_of(phases, StepCall::LocalStep), "");
}

}  // namespace kolo::test::step_phase_test
