// Random training programs go as in one process. Ranks are threads. training_gate runs other seeds,
// and shrinks those that fail.
#include <chrono>
#include <cstdint>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "train/random/run.hpp"

namespace kolo::random_training {

class RandomTrainingTest : public testing::TestWithParam<std::tuple<Mode, std::uint64_t>> {};

INSTANTIATE_TEST_SUITE_P(, RandomTrainingTest,
                         testing::Combine(testing::Values(Mode::None, Mode::Optimizer,
                                                          Mode::Gradients, Mode::FullGathered),
                                          testing::Range<std::uint64_t>(1, 16)),
                         [](const auto& item) {
                           return std::string(name_of(std::get<0>(item.param))) + "_" +
                                  std::to_string(std::get<1>(item.param));
                         });

/// A joined rank is found while a unit is being gathered, after a refused call.
INSTANTIATE_TEST_SUITE_P(Found, RandomTrainingTest,
                         testing::Values(std::tuple{Mode::FullGathered, std::uint64_t{700045}}));

TEST_P(RandomTrainingTest, Program_GoesAsInOneProcess) {
  const auto& [mode, seed] = GetParam();
  const Program program = draw_program(draw_plan(seed, mode, 0), kCalls);
  Places places;
  const std::string failure = run_in_threads(program, std::chrono::seconds(60), places);
  EXPECT_EQ(failure, "") << program.text() << "shrink: training_gate --mode " << name_of(mode)
                         << " --seed " << seed;
}

}  // namespace kolo::random_training
