// Process sets of ranks that are processes, and messages between two of them.
#include <cstdlib>
#include <filesystem>
#include <latch>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/file_store.hpp"
#include "kolo/collectives.hpp"
#include "kolo/messages.hpp"
#include "mpi/runtime_mpi_fixture.hpp"
#include "runtime/all_collectives.hpp"
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

// The other ranks wait in MPI meanwhile, not in Kolo.
TEST_P(RuntimeMpiTest, MembersMakeSetsOfTheirOwn) {
  MpiRanks& ranks = MpiRanks::instance();
  std::string folder = std::filesystem::temp_directory_path() / "kolo-store-XXXXXX";
  if (ranks.rank() == 0) folder = ::mkdtemp(folder.data());
  folder = ranks.broadcast(folder, 0, "the folder of the store");
  comm::FileStore store(folder);
  {
    Runtime runtime(options());
    for (int first = 0; first + 1 < runtime.size(); ++first) {
      if (runtime.rank() != first && runtime.rank() != first + 1) continue;
      ProcessSet& named = runtime.add_process_set({first, first + 1}, store);
      ProcessSet& ordered = runtime.add_process_set({first, first + 1}, store, Matching::ByOrder);
      for (int round = 0; round < 3; ++round) {
        expect_all_work(named);
        expect_all_work(ordered);
      }
      runtime.remove_process_set(named);
      runtime.remove_process_set(ordered);
    }
    expect_sum_works(runtime, "x");
  }
  ranks.gather(0, "the store is not used any more");
  if (ranks.rank() == 0) std::filesystem::remove_all(folder);
}

TEST_P(RuntimeMpiTest, OperationsMatchedByOrder) {
  Runtime runtime(options());
  std::vector<int> all;
  for (int rank = 0; rank < runtime.size(); ++rank) all.push_back(rank);
  ProcessSet& set = runtime.add_process_set(all, Matching::ByOrder);
  expect_all_work(set);
  for (int i = 0; i < 200; ++i) expect_sum_works(set, std::to_string(runtime.rank()), 1 + i * i);
  barrier();  // a rank that leaves agrees with the others on that
  EXPECT_EQ(set.metrics().negotiations, 0U);
}

TEST_P(RuntimeMpiTest, MessagesAroundARing) {
  Runtime runtime(options());
  const int to = (runtime.rank() + 1) % runtime.size();
  const int from = (runtime.rank() + runtime.size() - 1) % runtime.size();
  for (const std::int64_t count : {0, 1, 512, 513, 30'000, 3'000'000}) {
    Tensor sent = on_cpu(DType::Float32, {count});
    Tensor received = on_cpu(DType::Float32, {count});
    sent.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    Handle sending = send_async(sent.view(), to, {.tag = count});
    EXPECT_EQ(receive(received.view(), kAnyRank, {.tag = count}), from);
    received.expect([&](std::size_t i) { return input_value(from, i); }, "received");
    sending.wait();
  }
  barrier();  // a rank that leaves closes the world for the messages of others
}

}  // namespace kolo::test::runtime_mpi_test
