// Ranks that share no memory, as on several hosts or in several containers. They are threads of one
// process, so UCX connects them by TCP over the loopback device.
#include "comm/ucx_messages.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/ranks_of_a_store.hpp"
#include "comm/shared_memory.hpp"
#include "contract/communicator_contract.hpp"
#include "contract/transfer_contract.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::ucx_messages_test {

constexpr int kHosts = 2;

/// Says that rank r runs on host r % 2.
class StoreOfHosts final : public Store {
 public:
  StoreOfHosts(std::shared_ptr<Store> store, int rank) : store_(std::move(store)), rank_(rank) {}
  void set(const std::string& key, const std::string& value) override {
    constexpr std::size_t kBootId = 8 + 64;  // behind a number and the host's name
    std::string changed = value;
    if (key == "kolo/cards/" + std::to_string(rank_)) {
      changed[kBootId] = static_cast<char>('x' + rank_ % kHosts);
    }
    store_->set(key, changed);
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds timeout) override {
    return store_->get(key, timeout);
  }

 private:
  const std::shared_ptr<Store> store_;
  const int rank_;
};

struct RanksOfTwoHosts {
  static std::vector<int> sizes() { return {2, 3, 5}; }
  static void run(int size, const std::function<void(comm::World&)>& body) {
    const auto store = std::make_shared<MemoryStore>();
    run_threads(size, [&](int rank) {
      comm::RendezvousWorld world(
          Config{},
          {.store = std::make_shared<StoreOfHosts>(store, rank), .rank = rank, .size = size});
      body(world);
    });
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, CommunicatorContract, RanksOfTwoHosts);
INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, TransferContract, RanksOfTwoHosts);

TEST(UcxMessagesTest, HostsAreNodes) {
  RanksOfTwoHosts::run(5, [](comm::World& world) {
    const comm::Topology& topology = world.topology();
    EXPECT_EQ(topology.node_of_rank, (std::vector<int>{0, 1, 0, 1, 0}));
    EXPECT_EQ(topology.local_rank, topology.rank / kHosts);
    EXPECT_TRUE(world.dead_peers().empty());
  });
}

// UCX replaces functions that map memory.
TEST(UcxMessagesTest, SharedMemory_IsStillJoined) {
  RanksOfTwoHosts::run(2, [](comm::World&) {
    const std::size_t page = comm::page_bytes();
    const comm::NewSegment segment = comm::make_segment(2 * page);
    const comm::Mapping mapping = comm::open_segment(segment.address);
    const comm::JoinedMapping joined(
        2 * page, std::vector<comm::JoinedMapping::Part>{
                      {.memory = mapping.data() + page, .size_bytes = page, .offset = page}});
    joined.data()[page] = std::byte{7};
    EXPECT_EQ(mapping.data()[page], std::byte{7});
  });
}

TEST(UcxMessagesTest, RuntimesOfTwoHosts_AgreeAndReduce) {
  const auto store = std::make_shared<MemoryStore>();
  run_threads(5, [&](int rank) {
    Runtime runtime({.config = test_config(),
                     .store = std::make_shared<StoreOfHosts>(store, rank),
                     .rank = rank,
                     .size = 5});
    Runtime::set_thread_current(&runtime);
    expect_sum_works(runtime, "x");
    const std::vector<int> others{0, 3, 4};
    ProcessSet& set = runtime.add_process_set(others);
    EXPECT_EQ(set.included(), rank == 0 || rank > 2);
    expect_sum_works(runtime, "y");
    Runtime::set_thread_current(nullptr);
  });
}

}  // namespace kolo::test::ucx_messages_test
