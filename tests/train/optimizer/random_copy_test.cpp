// Training loops of 300 random steps end as in one process also where ranks share one copy of the
// parameters, which threads cannot.
#include <gtest/gtest.h>

#include "train/random_training.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::random_copy_test {

class RandomCopyTest : public TrainingTest, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(, RandomCopyTest, testing::Range(1, 3));

TEST_P(RandomCopyTest, Loop_EndsAsInOneProcess) {
  const random_training::RandomLoop loop(static_cast<std::uint64_t>(GetParam()), runtime_.size(),
                                         /*uses_alike=*/false);
  loop.run(Shard::Full, runtime_);
}

}  // namespace kolo::test::random_copy_test
