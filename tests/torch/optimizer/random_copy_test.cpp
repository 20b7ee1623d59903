// Training loops of 300 random steps end as in one process also where ranks share one copy of the
// parameters, which threads cannot.
#include <gtest/gtest.h>

#include "kolo/runtime.hpp"
#include "support/mpi/test_world.hpp"
#include "torch/random_training.hpp"

namespace kolo::test::random_copy_test {

class RandomCopyTest : public testing::TestWithParam<int> {
 protected:
  Runtime runtime_{in_test_world()};
};

INSTANTIATE_TEST_SUITE_P(, RandomCopyTest, testing::Range(1, 3));

TEST_P(RandomCopyTest, Loop_EndsAsInOneProcess) {
  const random_training::RandomLoop loop(static_cast<std::uint64_t>(GetParam()), runtime_.size(),
                                         /*uses_alike=*/false);
  loop.run(Shard::Full, runtime_);
}

}  // namespace kolo::test::random_copy_test
