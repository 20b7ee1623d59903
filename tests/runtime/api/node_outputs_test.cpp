// All-gathers whose output is shared by the ranks of a node, on several nodes, and their memory.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/api/collectives.hpp"
#include "runtime/deaths.hpp"
#include "runtime/join_expectations.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::node_outputs_test {

using runtime::Outputs;

/// Gathers one row, whose result is not checked.
Handle gather_row(Outputs outputs) {
  const auto rows = std::make_shared<std::vector<float>>(16);
  const auto ranks = static_cast<std::size_t>(Runtime::current().size());
  return submit(runtime::make_allgather(
      {{{rows->data() + 8, DType::Float32, {1}, {}}, rows->data()}},
      std::vector<std::int64_t>(ranks, 1), outputs, {.name = "x", .keep_alive = rows}));
}

std::vector<Setting> nodes() {
  using namespace std::chrono_literals;
  const auto on = [](int nodes, int size, std::uint64_t seed) {
    return Setting{
        .name = std::to_string(nodes) + "Nodes" + std::to_string(size) + "Ranks",
        .size = size,
        .network = {
            .nodes = nodes, .longest_delay = 200us, .seed = seed, .rendezvous = seed % 2 == 0}};
  };
  std::vector<Setting> settings{on(2, 2, 1), on(2, 4, 2), on(3, 6, 3), on(2, 6, 4)};
  for (Setting& setting : settings)
    setting.config.algorithm = "allgather:pairwise";  // it must not be taken
  return settings;
}

class NodeOutputsTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(, NodeOutputsTest, testing::ValuesIn(nodes()),
                         [](const auto& setting) { return setting.param.name; });

/// Row counts and values that differ per rank and step; rank 0 has rows every other time.
std::int64_t rows_of(int rank, std::size_t step) {
  return (std::int64_t{3} * rank + static_cast<std::int64_t>(step)) % 5;
}

double value_of(int rank, std::size_t step, std::size_t i) {
  return rank * 1000.0 + static_cast<double>(step * 100 + i);
}

template <class T>
std::vector<T> own_rows(int rank, std::size_t step, std::size_t row) {
  std::vector<T> values(static_cast<std::size_t>(rows_of(rank, step)) * row);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(value_of(rank, step, i));
  }
  return values;
}

template <class T>
void expect_all_rows(const T* output, int size, std::size_t step, std::size_t row) {
  for (int rank = 0; rank < size; ++rank) {
    for (const T expected : own_rows<T>(rank, step, row)) {
      ASSERT_EQ(*output++, expected) << "of rank " << rank << " in step " << step;
    }
  }
}

TEST_P(NodeOutputsTest, EveryRankFindsAllRowsAsSoonAsItsCallHasEnded) {
  constexpr std::size_t kRow = 3;
  std::vector<std::vector<float>> floats(3, std::vector<float>(24 * kRow));  // by node
  std::vector<std::vector<std::int64_t>> numbers(3, std::vector<std::int64_t>(24));
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    const auto node = static_cast<std::size_t>(runtime.cross_rank());
    for (std::size_t step = 0; step < 12; ++step) {  // reuses the same memory
      std::vector<float> first = own_rows<float>(runtime.rank(), step, kRow);
      std::vector<std::int64_t> second = own_rows<std::int64_t>(runtime.rank(), step, 1);
      const std::int64_t own = rows_of(runtime.rank(), step);
      std::vector<std::int64_t> rows;
      for (int rank = 0; rank < runtime.size(); ++rank) rows.push_back(rows_of(rank, step));
      submit(runtime::make_allgather(
                 {{{first.data(), DType::Float32, {own, kRow}, {}}, floats[node].data()},
                  {{second.data(), DType::Int64, {own}, {}}, numbers[node].data()}},
                 rows, Outputs::PerNode, {.name = "x"}))
          .wait();
      expect_all_rows(floats[node].data(), runtime.size(), step, kRow);
      expect_all_rows(numbers[node].data(), runtime.size(), step, 1);
    }
  });
}

TEST_P(NodeOutputsTest, NodeWindows_AreSeenByTheRanksOfANode) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    const std::size_t bytes = sizeof(std::int64_t);
    const std::shared_ptr<SharedWindow> window =
        runtime::make_node_window(bytes, {.name = "window"});
    ASSERT_EQ(window->size(), runtime.local_size());
    ASSERT_EQ(window->rank(), runtime.local_rank());
    const auto number = [&](int rank) {
      return reinterpret_cast<std::int64_t*>(window->segment(rank).data());
    };
    *number(window->rank()) = 100 + runtime.rank();
    barrier({.name = "written"});
    for (int rank = 0; rank < window->size(); ++rank) {
      EXPECT_EQ(*number(rank), 100 + runtime.rank() - runtime.local_rank() + rank);
    }
    barrier({.name = "read"});
  });
}

TEST(NodeOutputErrorsTest, OneNode_UnequalNodes_AndSwitchedOffMemory_AreRefused) {
  Setting switched_off{.size = 4, .network = {.nodes = 2}};
  switched_off.config.shared_memory = false;
  for (const Setting& setting :
       {Setting{.size = 1}, Setting{.size = 2}, Setting{.size = 3, .network = {.nodes = 2}},
        Setting{.size = 4, .network = {.nodes = 2, .has_shared_memory = false}}, switched_off}) {
    run_runtimes(setting, [](Runtime& runtime) {
      const std::string text =
          text_thrown_by<InvalidArgument>([] { gather_row(Outputs::PerNode).wait(); });
      expect_contains(text, "several nodes with equally many ranks each");
      expect_contains(text_thrown_by<InvalidArgument>(
                          [] { runtime::make_node_window(64, {.name = "window"}); }),
                      "several nodes with equally many ranks each");
      gather_row(Outputs::PerRank).wait();
      expect_sum_works(runtime, "y");
    });
  }
}

TEST(NodeOutputErrorsTest, RanksThatDisagree_GetAMismatch) {
  run_runtimes({.size = 4, .network = {.nodes = 2}}, [](Runtime& runtime) {
    for (int step = 0; step < 3; ++step) {
      const Outputs outputs = runtime.rank() == 2 ? Outputs::PerRank : Outputs::PerNode;
      const std::string text = text_thrown_by<MismatchError>([&] { gather_row(outputs).wait(); });
      // In the order in which the first rank learned of them.
      expect_contains(text, "shared-memory placement differs: ");
      expect_contains(text, "once per node on rank");
      expect_contains(text, "none on rank 2");
      expect_sum_works(runtime, "y");
      gather_row(Outputs::PerNode).wait();
    }
  });
}

TEST(NodeOutputErrorsTest, WhileARankHasJoined_TheyAreRefused) {
  run_runtimes({.size = 4, .network = {.nodes = 2}}, [](Runtime& runtime) {
    gather_row(Outputs::PerNode).wait();
    if (runtime.rank() != 1) {
      joins::wait_until_joined("rank 1");
      expect_contains(text_thrown_by<InvalidArgument>([] { gather_row(Outputs::PerNode).wait(); }),
                      "rank 1 has joined, and does not have the memory that its node shares");
      gather_row(Outputs::PerRank).wait();
    }
    join();
    gather_row(Outputs::PerNode).wait();
    expect_sum_works(runtime, "y");
  });
}

TEST(NodeOutputErrorsTest, Death_EndsThemOnAllOthers) {
  run_with_death(
      {.size = 4, .network = {.nodes = 2}}, 3,
      [](Runtime&) { gather_row(Outputs::PerNode).wait(); },
      [](FakeWorld&) {
        const std::string text =
            text_thrown_by<PeerLostError>([] { gather_row(Outputs::PerNode).wait(); });
        expect_contains(text, "rank 3 died");
      });
}

}  // namespace kolo::test::node_outputs_test
