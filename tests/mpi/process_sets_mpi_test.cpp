// Process sets of ranks that are processes.
#include <latch>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "mpi/runtime_mpi_fixture.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test::runtime_mpi_test {

TEST_P(RuntimeMpiTest, ProcessSetsComeAndGo) {
  Runtime runtime(options());
  const int rounds = tensor_place == nullptr ? 8 : 4;  // GPUs take long to connect
  for (int round = 1; round <= rounds; ++round) {
    std::vector<int> ranks{round % runtime.size()};
    if (runtime.size() > 1) ranks.push_back((round + 1) % runtime.size());
    ProcessSet& pair = runtime.add_process_set(ranks);
    std::vector<int> all;
    for (int rank = 0; rank < runtime.size(); ++rank) all.push_back(rank);
    ProcessSet& everybody = runtime.add_process_set(all);
    EXPECT_EQ(everybody.number(), 2 * round);
    expect_sum_works(everybody, "x", 5003);
    if (pair.included()) expect_sum_works(pair, "x", 5003);
    runtime.remove_process_set(everybody);
    runtime.remove_process_set(pair);
  }
  expect_sum_works(runtime, "x");
}

TEST_P(RuntimeMpiTest, AnOperationThatIsHeldHoldsNoOtherProcessSet) {
  if (MpiRanks::is_funneled()) GTEST_SKIP() << "the thread of the messages waits outside of Kolo";
  Runtime runtime(options());
  std::vector<int> all;
  for (int rank = 0; rank < runtime.size(); ++rank) all.push_back(rank);
  ProcessSet& held = runtime.add_process_set(all);
  ProcessSet& other = runtime.add_process_set(all);
  Rows output{DType::Float32, 1};
  std::latch is_called(1);
  std::latch is_released(1);
  const bool holds = runtime.rank() == 0;
  const AllocateRows allocate =
      [&, usual = output.allocator()](const std::vector<std::int64_t>& rows) -> void* {
    is_called.count_down();
    if (holds) is_released.wait();
    return usual(rows);
  };
  const Tensor input(4);
  Handle handle = allgather_async(input.view(), allocate, {.name = "x", .process_set = &held});
  is_called.wait();
  for (int i = 0; i < 100; ++i) expect_sum_works(other, "y");
  expect_sum_works(runtime, "y");
  if (holds) {
    EXPECT_FALSE(handle.is_ready());
    is_released.count_down();
  }
  handle.wait();
  EXPECT_EQ(output.counts, std::vector<std::int64_t>(all.size(), 4));
}

}  // namespace kolo::test::runtime_mpi_test
