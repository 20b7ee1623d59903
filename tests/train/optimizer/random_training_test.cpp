// Training loops of 300 random steps end as in one process over the whole batch. Ranks are threads.
#include "train/random_training.hpp"

#include <cstdint>
#include <ostream>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

namespace kolo::test::random_training_test {

constexpr int kRanks = 3;

/// A mode, on one node or on three. Shard::Full on one node needs processes: random_copy_test.cpp.
struct Place {
  const char* name;
  Shard shard;
  int nodes;
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }

class RandomTrainingTest : public testing::TestWithParam<std::tuple<Place, std::uint64_t>> {};

INSTANTIATE_TEST_SUITE_P(, RandomTrainingTest,
                         testing::Combine(testing::Values(Place{"None", Shard::None, 1},
                                                          Place{"Optimizer", Shard::Optimizer, 1},
                                                          Place{"Gradients", Shard::Gradients, 1},
                                                          Place{"FullOnThreeNodes", Shard::Full,
                                                                kRanks}),
                                          testing::Range<std::uint64_t>(1, 5)),
                         [](const auto& item) {
                           return std::string(std::get<0>(item.param).name) + "_" +
                                  std::to_string(std::get<1>(item.param));
                         });

TEST_P(RandomTrainingTest, Loop_EndsAsInOneProcess) {
  const auto& [place, seed] = GetParam();
  const bool gathers = place.shard == Shard::Full;
  const random_training::RandomLoop loop(seed, kRanks, gathers);
  const Setting setting{.size = kRanks, .network = {.nodes = place.nodes}};
  run_runtimes(setting, [&, shard = place.shard](Runtime& runtime) { loop.run(shard, runtime); });
}

}  // namespace kolo::test::random_training_test
