// Runtimes over the program's own communicators.
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/mpi.hpp"
#include "mpi/runtime_variants.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/mpi/agree.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test::communicator_mpi_test {

int world_rank() { return MpiRanks::instance().rank(); }
int world_size() { return MpiRanks::instance().size(); }

/// A communicator made by the program; MPI_COMM_NULL on ranks without a colour.
class Group {
 public:
  explicit Group(std::optional<int> colour, int key = 0) {
    const MpiLock lock;
    MPI_Comm_split(MPI_COMM_WORLD, colour.value_or(MPI_UNDEFINED), key, &communicator_);
  }
  ~Group() {
    const MpiLock lock;
    if (communicator_ != MPI_COMM_NULL) MPI_Comm_free(&communicator_);
  }
  Group(const Group&) = delete;  // the communicator is freed only once
  Group& operator=(const Group&) = delete;

  MPI_Comm get() const { return communicator_; }
  InitOptions options() const {
    return {.config = config_of_ranks(), .communicator = mpi_handle(communicator_)};
  }

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
};

TEST(CommunicatorTest, RanksHaveTheOrderOfTheCommunicator) {
  const Group reversed(0, world_size() - world_rank());
  Runtime runtime(reversed.options());
  EXPECT_EQ(runtime.rank(), world_size() - 1 - world_rank());
  EXPECT_EQ(runtime.size(), world_size());
  expect_sum_works(runtime, "x", 5003);
}

TEST(CommunicatorTest, OtherRanksNeedNotKnow) {
  const bool is_member = world_rank() % 2 == 1 || world_size() == 1;
  const Group odd(is_member ? std::optional(0) : std::nullopt);
  if (is_member) {
    Runtime runtime(odd.options());
    for (int i = 0; i < 20; ++i) expect_sum_works(runtime, "x", 20011);
  } else {
    EXPECT_THROW(Runtime(odd.options()), InvalidArgument) << "MPI_COMM_NULL";
  }
  EXPECT_ON_ALL_RANKS(!is_initialized());
}

TEST(CommunicatorTest, RuntimesOverSeveralLiveAtOnce) {
  const Group parity(world_rank() % 2);
  const Group same(0);
  Runtime everybody({.config = config_of_ranks()});
  Runtime group(parity.options());
  Runtime first(same.options());
  Runtime second(same.options());
  for (int i = 0; i < 10; ++i) {
    std::vector<Tensor> tensors;
    std::vector<Handle> handles;
    Runtime* const runtimes[] = {&everybody, &group, &first, &second};
    for (Runtime* const runtime : runtimes) {
      tensors.emplace_back(10007);
      tensors.back().fill([&](std::size_t k) { return input_value(runtime->rank(), k); });
    }
    for (std::size_t k = 0; k < tensors.size(); ++k) {  // in a different order on every rank
      const std::size_t which = (k + static_cast<std::size_t>(world_rank())) % tensors.size();
      handles.push_back(allreduce_async(
          tensors[which].view(), tensors[which].view(),
          {.op = ReduceOp::Sum, .name = "x", .process_set = &runtimes[which]->world()}));
    }
    for (Handle& handle : handles) handle.wait();
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      tensors[k].expect([&](std::size_t e) { return input_sum(runtimes[k]->size(), e); },
                        "Runtime " + std::to_string(k));
    }
  }
}

TEST(CommunicatorTest, MessagesOfTheProgramAreItsOwn) {
  const Group group(0);
  const int next = (world_rank() + 1) % world_size();
  int received = -1;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(&received, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, group.get(), &request);
  {
    Runtime runtime(group.options());
    for (int i = 0; i < 20; ++i) {
      expect_sum_works(runtime, "x", 20011);
      int sum = 0;
      mpi_wait([&](MPI_Request* call) {
        MPI_Iallreduce(&i, &sum, 1, MPI_INT, MPI_SUM, group.get(), call);
      });
      EXPECT_EQ(sum, i * world_size());
    }
  }
  const int own = world_rank();
  MPI_Send(&own, 1, MPI_INT, next, 5, group.get());
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  EXPECT_EQ(received, (world_rank() + world_size() - 1) % world_size());
}

TEST(CommunicatorTest, RuntimesFollowEachOther) {
  const Group group(0);
  for (int i = 0; i < 60; ++i) {
    Runtime runtime(group.options());
    // Late messages of the previous Runtime must not reach this one.
    if ((i + world_rank()) % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    if (i % 5 == 0) runtime.add_process_set({world_size() - 1});
    expect_sum_works(runtime, "x", 3);
  }
}

TEST(CommunicatorTest, CommunicatorsAreFreedWithTheirOriginal) {
  for (int i = 0; i < 60; ++i) {
    const Group group(world_rank() % (1 + i % 2));
    Runtime runtime(group.options());
    expect_sum_works(runtime, "x", 3);
  }
}

TEST(CommunicatorTest, RuntimesMayEndInAnyOrder) {
  const Group group(0);
  for (int i = 0; i < 10; ++i) {
    auto first = std::make_unique<Runtime>(group.options());
    auto second = std::make_unique<Runtime>(group.options());
    if (world_rank() % 2 == 1) std::swap(first, second);
    first.reset();
    second.reset();
    Runtime third(group.options());
    expect_sum_works(third, "x", 3);
  }
}

TEST(CommunicatorTest, Intercommunicators_AreRefused) {
  if (world_size() == 1) GTEST_SKIP() << "an intercommunicator needs two ranks";
  const Group half(world_rank() % 2);
  MPI_Comm between = MPI_COMM_NULL;
  MPI_Intercomm_create(half.get(), 0, MPI_COMM_WORLD, 1 - world_rank() % 2, 7, &between);
  expect_contains(
      text_thrown_by<InvalidArgument>([&] {
        const Runtime runtime({.config = config_of_ranks(), .communicator = mpi_handle(between)});
      }),
      "MPI_Intercomm_merge");
  MPI_Comm_free(&between);
}

}  // namespace kolo::test::communicator_mpi_test
