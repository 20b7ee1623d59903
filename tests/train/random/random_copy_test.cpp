// Random training programs go as in one process also where ranks share one copy of the parameters,
// which threads cannot. With RANDOM_SEEDS="first count", other programs than the fixed ones.
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "runtime/runtimes.hpp"
#include "support/mpi/mpi_ranks.hpp"
#include "support/mpi/test_world.hpp"
#include "train/random/run.hpp"

namespace kolo::random_training {

class RandomCopyTest : public testing::TestWithParam<int> {};

auto seeds() {
  int first = 1;
  int count = 15;
  if (const char* const given = std::getenv("RANDOM_SEEDS")) {
    std::istringstream(given) >> first >> count;
  }
  return testing::Range(first, first + count);
}

INSTANTIATE_TEST_SUITE_P(, RandomCopyTest, seeds());

TEST_P(RandomCopyTest, Program_GoesAsInOneProcess) {
  test::MpiRanks& ranks = test::MpiRanks::instance();
  const auto seed = static_cast<std::uint64_t>(GetParam());
  const Program program = draw_program(draw_plan(seed, Mode::FullCopy, ranks.size()), kCalls);
  const TemporaryFolder own;
  const std::filesystem::path folder = ranks.broadcast(own.path().string(), 0, "the folder");
  Places places;
  for (std::size_t i = 0; i < program.parts.size() && !testing::Test::HasFailure(); ++i) {
    try {
      set_default_dtype(program.parts[i].setup);
      Runtime runtime(test::in_test_world(test::test_config()));
      run_part(program, i, runtime, folder, places);
    } catch (const std::exception& error) {
      ADD_FAILURE() << program.text() << "rank " << ranks.rank() << ": " << error.what();
    }
    torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  }
  ranks.gather(0, "the end of the program");  // the folder is in use until then
}

}  // namespace kolo::random_training
