#include "comm/mpi_world.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <sched.h>
#include <string>
#include <sys/sysinfo.h>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "comm/mpi_duplicate.hpp"
#include "comm/mpi_environment.hpp"
#include "contract/communicator_contract.hpp"
#include "contract/transfer_contract.hpp"
#include "contract/window_contract.hpp"
#include "support/errors.hpp"
#include "support/mpi/agree.hpp"
#include "support/mpi/mpi_ranks.hpp"
#include "support/system/file_size_limit.hpp"

namespace kolo::test::mpi_world_test {

struct MpiProcesses {
  static std::vector<int> sizes() { return {MpiRanks::instance().size()}; }
  static void run(int, const std::function<void(comm::World&)>& body) {
    comm::MpiWorld world(Config{});
    body(world);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, CommunicatorContract, MpiProcesses);
INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, TransferContract, MpiProcesses);
INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, WindowContract, MpiProcesses);

int rank() { return MpiRanks::instance().rank(); }
int size() { return MpiRanks::instance().size(); }

TEST(MpiWorldTest, RanksOfOneMachine_ShareANode) {
  comm::MpiWorld world(Config{});
  const comm::Topology& topology = world.topology();
  EXPECT_EQ(topology.rank, rank());
  EXPECT_EQ(topology.size, size());
  EXPECT_EQ(topology.local_rank, rank());
  EXPECT_EQ(topology.local_size, size());
  EXPECT_TRUE(world.dead_peers().empty());
}

// As by taskset, or by a launcher.
TEST(MpiWorldTest, RanksBoundToOneCore_ShareIt) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  unsigned long first = 0;  // of rank 0: the launcher may have bound each rank to another one
  while (!CPU_ISSET(first, &before)) ++first;
  MPI_Bcast(&first, 1, MPI_UNSIGNED_LONG, 0, MPI_COMM_WORLD);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(comm::MpiWorld(Config{}).topology().shares_cores, size() > 1);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(MpiWorldTest, FakeNodes_AreContiguousBlocks) {
  Config config;
  config.fake_nodes = 2;
  comm::MpiWorld world(config);
  EXPECT_EQ(world.topology().node_of_rank, comm::contiguous_nodes(size(), 2));
}

TEST(MpiWorldTest, Channels_EndWithTheTagsOfMpi) {
  comm::MpiWorld world(Config{});
  EXPECT_NO_THROW(everybody(world, 100));
  EXPECT_THROW(everybody(world, std::numeric_limits<int>::max() / Communicator::kTagCount),
               InvalidArgument);
}

TEST(MpiDuplicateTest, DuplicatesOfManyWorlds_AreTakenAgain) {
  MPI_Comm copy = MPI_COMM_NULL;
  ASSERT_EQ(MPI_Comm_dup(MPI_COMM_WORLD, &copy), MPI_SUCCESS);
  const comm::MpiHandle original = comm::mpi().comm_f2c(MPI_Comm_c2f(copy));
  {
    std::vector<std::unique_ptr<comm::MpiDuplicate>> held;
    for (int i = 0; i < 70; ++i) {
      held.push_back(std::make_unique<comm::MpiDuplicate>(original));
    }
    const comm::MpiHandle last = held.back()->base();
    held.back().reset();
    held.back() = std::make_unique<comm::MpiDuplicate>(original);
    EXPECT_EQ(held.back()->base(), last);
  }
  MPI_Comm_free(&copy);
}

// --- shared memory ---

std::size_t count_open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

/// Counts mappings of unnamed files in shared memory, which the kernel calls #<inode>.
std::size_t count_unnamed_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("/dev/shm/#") != std::string::npos;
  }
  return count;
}

/// How many of these a core dump of this process would contain.
std::size_t count_dumped_mappings() {
  std::ifstream smaps("/proc/self/smaps");
  std::size_t count = 0;
  bool is_unnamed = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find("-") < line.find(":")) is_unnamed = line.find("/dev/shm/#") != std::string::npos;
    if (!line.starts_with("VmFlags:")) continue;
    count += is_unnamed && line.find(" dd") == std::string::npos;
  }
  return count;
}

TEST(PosixWindowTest, Window_LeavesNoNameDescriptorOrMapping) {
  comm::MpiWorld world(Config{});
  const auto communicator = everybody(world);
  ASSERT_ON_ALL_RANKS(count_unnamed_mappings() == 0);
  const std::size_t files = count_open_files();
  {
    const auto window = make_window(world, *communicator, 100'000);
    EXPECT_EQ(count_open_files(), files);
    EXPECT_EQ(count_unnamed_mappings(), static_cast<std::size_t>(size()));
    EXPECT_EQ(count_dumped_mappings(), 1u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window->segment(0).data()) % 4096, 0u);
  }
  EXPECT_EQ(count_unnamed_mappings(), 0u);
  EXPECT_THROW(make_window(world, *communicator, std::size_t{1} << 50), BackendError);
  EXPECT_EQ(count_open_files(), files);
  EXPECT_EQ(count_unnamed_mappings(), 0u);
}

// Otherwise the kernel would supply pages until memory runs out, and then kill processes.
TEST(PosixWindowTest, MoreThanTheMachineHas_IsRefusedBeforeItIsReserved) {
  struct sysinfo machine{};
  ASSERT_EQ(::sysinfo(&machine), 0);
  const std::size_t total = (machine.totalram + machine.totalswap) * machine.mem_unit;
  comm::MpiWorld world(Config{});
  const auto communicator = everybody(world);
  const std::string text = text_thrown_by<BackendError>([&] {
    static_cast<void>(
        make_window(world, *communicator, total / static_cast<std::size_t>(size()) + 1));
  });
  expect_contains(text, "for each of " + std::to_string(size()) + " ranks exceed");
}

// One rank cannot make its segment: all learn which rank and why, and the next window succeeds.
TEST(PosixWindowTest, FailureOfOneRank_IsAnErrorOnAll) {
  comm::MpiWorld world(Config{});
  const auto communicator = everybody(world);
  const int victim = size() - 1;
  std::string text;
  {
    const FileSizeLimit limit(rank() == victim ? 4096 : RLIM_INFINITY);
    text = text_thrown_by<BackendError>(
        [&] { static_cast<void>(make_window(world, *communicator, 1 << 20)); });
  }
  EXPECT_ON_ALL_RANKS(!text.empty());
  expect_contains(text, "rank " + std::to_string(victim));
  expect_contains(text, "1052672 bytes");
  expect_contains(text, "File too large");
  EXPECT_EQ(count_unnamed_mappings(), 0u);
  EXPECT_NO_THROW(static_cast<void>(make_window(world, *communicator, 1 << 20)));
}

}  // namespace kolo::test::mpi_world_test
