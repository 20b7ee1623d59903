// The algorithms of a process set get a window if all its ranks share a node, and the nodes if
// there are several. Otherwise collectives would send messages, and their results would not show
// it.
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "ops/algorithms.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::set_context_test {

std::atomic<int> runs{0};

Task with_window(CollectiveCall call) {
  ++runs;
  EXPECT_NE(call.window, nullptr);
  return ops::allreduce_window(call);
}
Task with_nodes(CollectiveCall call) {
  ++runs;
  EXPECT_EQ(call.window, nullptr);
  EXPECT_EQ(std::vector<int>(call.nodes->node_of_rank.begin(), call.nodes->node_of_rank.end()),
            (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(call.nodes->window->size(), 2);
  return ops::allreduce_hierarchical(call);
}

/// Whether an all-reduce of the world, or of the ranks in `set`, runs the algorithm `name` if the
/// settings prefer it.
bool is_taken(const std::string& name, Setting setting, const std::vector<int>& set = {}) {
  setting.config.algorithm = "allreduce:" + name;
  runs = 0;
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        InitOptions options = options_in(world, setting.config);
        options.algorithms = {
            {"window of mine", Collective::AllReduce, Needs::Window, true, with_window},
            {"nodes of mine", Collective::AllReduce, Needs::Nodes, true, with_nodes}};
        if (!set.empty()) options.process_sets = {set};
        Runtime runtime(std::move(options));
        Runtime::set_thread_current(&runtime);
        ProcessSet& used = runtime.process_set(set.empty() ? 0 : 1);
        if (used.included()) expect_sum_works(used, "x", 1000);
      },
      setting.network);
  const int members = set.empty() ? setting.size : static_cast<int>(set.size());
  EXPECT_TRUE(runs == 0 || runs == members) << runs << " of " << members << " ranks";
  return runs > 0;
}

Setting switched_off(Setting setting) {
  setting.config.shared_memory = false;
  return setting;
}

TEST(SetContextTest, RanksOfOneNodeHaveAWindow) {
  const std::string window = "window of mine";
  const Setting one_node{.size = 4};
  const Setting two_nodes{.size = 4, .network = {.nodes = 2}};
  EXPECT_TRUE(is_taken(window, one_node));
  EXPECT_FALSE(is_taken(window, switched_off(one_node)));
  EXPECT_FALSE(is_taken(window, {.size = 4, .network = {.has_shared_memory = false}}));
  EXPECT_FALSE(is_taken(window, two_nodes));
  EXPECT_TRUE(is_taken(window, two_nodes, {2, 3}));
  EXPECT_FALSE(is_taken(window, two_nodes, {1, 2}));
}

TEST(SetContextTest, NodesWithEquallyManyRanksAreKnown) {
  const std::string nodes = "nodes of mine";
  const Setting two_nodes{.size = 4, .network = {.nodes = 2}};
  EXPECT_TRUE(is_taken(nodes, two_nodes));
  EXPECT_TRUE(is_taken(nodes, {.size = 6, .network = {.nodes = 3}}, {0, 1, 4, 5}));
  EXPECT_FALSE(is_taken(nodes, switched_off(two_nodes)));
  EXPECT_FALSE(is_taken(nodes, {.size = 4}));
  EXPECT_FALSE(is_taken(nodes, {.size = 3, .network = {.nodes = 2}}));
}

}  // namespace kolo::test::set_context_test
