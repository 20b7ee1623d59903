// Collectives on memory that the ranks share: disagreements and invalid arguments.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/algorithm.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "kolo/task.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/shared_buffers.hpp"
#include "runtime/values.hpp"

namespace kolo::test::shared_collectives_error_test {

class SharedCollectivesErrorTest : public SharedBuffersTest {};

INSTANTIATE_TEST_SUITE_P(, SharedCollectivesErrorTest, testing::ValuesIn(shared_buffer_settings()),
                         name_of_setting);

/// A call that is wrong, or differs, on the last rank.
struct Case {
  std::string name;
  std::vector<std::string> texts;  ///< parts of all ranks' errors
  std::function<Handle(const SharedBuffer&, bool is_last)> call;
};

std::vector<Case> disagreements() {
  const auto counts = [](std::int64_t first) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(size()), 8);
    all.front() = first;
    return all;
  };
  const std::vector<std::string> places{
      "shared-memory placement", "memory (number 1 of process set 0) + 0 on rank", " + 64 on rank"};
  const auto place = [](bool is_last) { return std::size_t{is_last ? 64u : 0u}; };
  return {
      {"AllReduce", places,
       [=](const SharedBuffer& buffer, bool is_last) {
         return allreduce_async(buffer, place(is_last), 8, DType::Float32, {.name = "x"});
       }},
      {"ReduceScatter", places,
       [=](const SharedBuffer& buffer, bool is_last) {
         const std::int64_t rows = scattered_rows(8, size(), rank());
         return reduce_scatter_async(buffer, place(is_last), {8},
                                     {buffer.data() + 2048, DType::Float32, {rows}}, {.name = "x"});
       }},
      {"AllGather", places,
       [=](const SharedBuffer& buffer, bool is_last) {
         return allgather_async(buffer, place(is_last), counts(8), DType::Float32, {.name = "x"});
       }},
      {"AllGatherCounts",
       {"rows of each rank", "[8", "[9"},
       [=](const SharedBuffer& buffer, bool is_last) {
         return allgather_async(buffer, 0, counts(is_last ? 9 : 8), DType::Float32, {.name = "x"});
       }},
      {"Broadcast", places,
       [=](const SharedBuffer& buffer, bool is_last) {
         return broadcast_async(buffer, place(is_last), 8, DType::Float32, 0, {.name = "x"});
       }},
      {"BroadcastOfPrivateMemory",
       {"shared-memory placement", "none on rank", " + 0 on rank"},
       [=](const SharedBuffer& buffer, bool is_last) {
         if (!is_last) return broadcast_async(buffer, 0, 8, DType::Float32, 0, {.name = "x"});
         return broadcast_async({buffer.data(), DType::Float32, {8}}, 0, {.name = "x"});
       }},
      {"AllToAll",
       {"shared-memory placement", " + 2048 on rank", " + 64 to memory"},
       [=](const SharedBuffer& buffer, bool is_last) {
         return alltoall_async(buffer, place(is_last), buffer, 2048, 8, DType::Float32,
                               {.name = "x"});
       }},
      {"AllToAllOutput",
       {"shared-memory placement", " + 2048 on rank", " + 2112 on rank"},
       [=](const SharedBuffer& buffer, bool is_last) {
         return alltoall_async(buffer, 0, buffer, 2048 + place(is_last), 8, DType::Float32,
                               {.name = "x"});
       }},
  };
}

std::vector<Case> wrong_arguments() {
  const auto even = [](std::int64_t count) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(size()), count);
  };
  const auto scatter = [](const SharedBuffer& buffer, std::size_t output) {
    const std::int64_t rows = scattered_rows(4 * size(), size(), rank());
    return reduce_scatter_async(buffer, 0, {4 * size()},
                                {buffer.data() + output, DType::Float32, {rows}}, {.name = "x"});
  };
  const std::string outside = "outside the shared buffer of 4096 bytes";
  return {
      {"AllReduceOutside",
       {outside},
       [](const SharedBuffer& buffer, bool is_last) {
         return allreduce_async(buffer, 0, is_last ? 1025 : 1024, DType::Float32, {.name = "x"});
       }},
      {"AllReduceHuge",
       {"is longer than any memory"},
       [](const SharedBuffer& buffer, bool is_last) {
         return allreduce_async(buffer, 0, is_last ? std::size_t{1} << 62 : 8, DType::Float32,
                                {.name = "x"});
       }},
      {"ReduceScatterHuge",
       {"is longer than any memory"},
       [](const SharedBuffer& buffer, bool is_last) {
         const std::int64_t extent = is_last ? std::int64_t{1} << 32 : 4;
         const std::int64_t rows = scattered_rows(extent, size(), rank());
         return reduce_scatter_async(buffer, 0, {extent, extent},
                                     {buffer.data() + 1024, DType::Float32, {rows, extent}},
                                     {.name = "x"});
       }},
      {"AllGatherHuge",
       {outside},
       [=](const SharedBuffer& buffer, bool is_last) {
         return allgather_async(buffer, 0, even(is_last ? std::int64_t{1} << 62 : 8),
                                DType::Float32, {.name = "x"});
       }},
      {"AllToAllHuge",
       {"is longer than any memory"},
       [](const SharedBuffer& buffer, bool is_last) {
         return alltoall_async(buffer, 0, buffer, 2048, is_last ? std::size_t{1} << 62 : 8,
                               DType::Float32, {.name = "x"});
       }},
      {"AllReduceBetweenElements",
       {"byte 6 ", "float32"},
       [](const SharedBuffer& buffer, bool is_last) {
         return allreduce_async(buffer, is_last ? 6 : 0, 8, DType::Float32, {.name = "x"});
       }},
      {"ReduceScatterOutside",
       {outside},
       [](const SharedBuffer& buffer, bool is_last) {
         const std::int64_t rows = scattered_rows(8, size(), rank());
         return reduce_scatter_async(buffer, is_last ? 4092 : 0, {8},
                                     {buffer.data() + 1024, DType::Float32, {rows}}, {.name = "x"});
       }},
      {"ReduceScatterOverlap",
       {"overlaps the input", "may be this rank's rows"},
       [=](const SharedBuffer& buffer, bool is_last) {
         const std::size_t own = static_cast<std::size_t>(rank()) * 16;
         return scatter(buffer, is_last ? own + 4 : own);
       }},
      {"AllGatherOutside",
       {outside},
       [=](const SharedBuffer& buffer, bool is_last) {
         return allgather_async(buffer, 0, even(is_last ? 2000 : 8), DType::Float32, {.name = "x"});
       }},
      {"AllGatherCountMissing",
       {"counts for"},
       [=](const SharedBuffer& buffer, bool is_last) {
         std::vector<std::int64_t> counts = even(8);
         if (is_last) counts.push_back(8);
         return allgather_async(buffer, 0, counts, DType::Float32, {.name = "x"});
       }},
      {"AllGatherNegative",
       {"a count is negative"},
       [=](const SharedBuffer& buffer, bool is_last) {
         return allgather_async(buffer, 0, even(is_last ? -1 : 8), DType::Float32, {.name = "x"});
       }},
      {"BroadcastOutside",
       {outside},
       [](const SharedBuffer& buffer, bool is_last) {
         return broadcast_async(buffer, is_last ? 4100 : 4096, 0, DType::Float32, 0, {.name = "x"});
       }},
      {"AllToAllOverlap",
       {"the output overlaps the input, which begins 28 bytes before it"},
       [](const SharedBuffer& buffer, bool is_last) {
         const std::size_t place = 32 * static_cast<std::size_t>(size());
         return alltoall_async(buffer, 0, buffer, is_last ? 28 : place, 8, DType::Float32,
                               {.name = "x"});
       }},
      {"AllToAllOutputOutside",
       {outside},
       [](const SharedBuffer& buffer, bool is_last) {
         return alltoall_async(buffer, 0, buffer, is_last ? 4096 : 2048, 8, DType::Float32,
                               {.name = "x"});
       }},
  };
}

/// All ranks throw `Expected` with all texts; afterwards the set still works.
template <class Expected>
void expect_error(Runtime& runtime, const SharedBuffer& buffer, const Case& item) {
  SCOPED_TRACE(item.name);
  const bool is_last = runtime.rank() == runtime.size() - 1;
  const std::string text = text_thrown_by<Expected>([&] { item.call(buffer, is_last).wait(); });
  for (const std::string& part : item.texts) expect_contains(text, part);
  expect_sum_works(runtime, "x");
}

TEST_P(SharedCollectivesErrorTest, DifferentPlaces_AreAMismatchOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  run([&](Runtime& runtime) {
    const SharedBuffer buffer(4096, {.name = "memory"});
    for (const Case& item : disagreements()) expect_error<MismatchError>(runtime, buffer, item);
  });
}

TEST_P(SharedCollectivesErrorTest, BuffersOfOneNameAreDistinguished) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  run([&](Runtime& runtime) {
    const SharedBuffer first(4096, {.name = "memory"});
    const SharedBuffer second(4096, {.name = "memory"});
    ProcessSet& set = runtime.add_process_set(runtime.world().ranks());
    const SharedBuffer elsewhere(4096, {.name = "memory", .process_set = &set});
    for (const SharedBuffer* const other : {&second, &elsewhere}) {
      const Case item{other->identity(),
                      {first.identity() + " + 0", other->identity() + " + 0"},
                      [&](const SharedBuffer& buffer, bool is_last) {
                        return allreduce_async(is_last ? *other : buffer, 0, 8, DType::Float32,
                                               {.name = "x"});
                      }};
      expect_error<MismatchError>(runtime, first, item);
    }
  });
}

TEST_P(SharedCollectivesErrorTest, OneRanksWrongArguments_AreAnErrorOnAll) {
  run([&](Runtime& runtime) {
    const SharedBuffer buffer(4096, {.name = "memory"});
    for (const Case& item : wrong_arguments()) expect_error<InvalidArgument>(runtime, buffer, item);
  });
}

// --- a lost rank ---

std::latch* all_take_part = nullptr;
std::latch* root_has_failed = nullptr;

/// The root waits forever. Rank 1 ends without noticing that the root has given up meanwhile.
Task broadcast_without_a_last_look(CollectiveCall call) {
  all_take_part->count_down();
  if (call.communicator->rank() == 1) {
    root_has_failed->wait();
    co_return;
  }
  for (;;) co_await yield();
}

// The root may overwrite its buffer as soon as its own operation has failed.
TEST(SharedCollectivesLossTest, WhatIsReadAfterTheRootGaveUp_IsNoResult) {
  Setting setting{.size = 3};
  setting.config.algorithm = "broadcast:own";
  std::latch all(3);
  std::latch root(1);
  std::latch survivors(2);
  all_take_part = &all;
  root_has_failed = &root;
  run_ranks(setting.size, [&](FakeWorld& world) {
    InitOptions options = options_in(world, setting.config);
    options.algorithms = {
        {"own", Collective::Broadcast, Needs::PeerBuffers, true, broadcast_without_a_last_look}};
    Runtime runtime(std::move(options));
    Runtime::set_thread_current(&runtime);
    const SharedBuffer buffer(4096);
    Handle handle = broadcast_async(buffer, 0, 8, DType::Float32, 0, {.name = "x"});
    if (runtime.rank() == 2) {
      all.wait();
      world.die();
      survivors.wait();
      return;
    }
    const std::string text = text_thrown_by<PeerLostError>([&] { handle.wait(); });
    expect_contains(text, "broadcast 'x' on process set");
    expect_contains(text, "rank 2 died");
    if (runtime.rank() == 0) root.count_down();
    survivors.count_down();
  });
}

}  // namespace kolo::test::shared_collectives_error_test
