// Runs the contract suites on every listed algorithm.

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "contract/all_gather_contract.hpp"
#include "contract/all_reduce_contract.hpp"
#include "contract/all_to_all_contract.hpp"
#include "contract/broadcast_contract.hpp"
#include "contract/reduce_scatter_contract.hpp"
#include "ops/registry.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test::algorithms_test {

std::vector<Algorithm> built_in(Collective collective) {
  std::vector<Algorithm> algorithms;
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    const bool is_adasum = algorithm.name == "adasum";  // no reduction of elements: adasum_test
    if (algorithm.collective == collective && !is_adasum) algorithms.push_back(algorithm);
  }
  return algorithms;
}

INSTANTIATE_TEST_SUITE_P(BuiltIn, AllReduceContract,
                         contract_cases(built_in(Collective::AllReduce)), name_contract_case);
INSTANTIATE_TEST_SUITE_P(BuiltIn, ReduceScatterContract,
                         contract_cases(built_in(Collective::ReduceScatter)), name_contract_case);
INSTANTIATE_TEST_SUITE_P(BuiltIn, AllGatherContract,
                         contract_cases(built_in(Collective::AllGather)), name_contract_case);
INSTANTIATE_TEST_SUITE_P(BuiltIn, BroadcastContract,
                         contract_cases(built_in(Collective::Broadcast)), name_contract_case);
INSTANTIATE_TEST_SUITE_P(BuiltIn, AllToAllContract, contract_cases(built_in(Collective::AllToAll)),
                         name_contract_case);

/// Written out, since an algorithm's own word decides how exactly tests compare.
TEST(RankOrderTest, TheseAlgorithms_SumInRankOrder) {
  const ops::Registry registry;
  std::set<std::string> ordered;
  for (const Algorithm& algorithm : registry.algorithms()) {
    if (!algorithm.rank_ordered) continue;
    ordered.insert(std::string(name_of(algorithm.collective)) + " " + std::string(algorithm.name));
  }
  EXPECT_EQ(ordered,
            (std::set<std::string>{"allreduce direct", "allreduce window", "allreduce window_small",
                                   "allreduce zero_copy", "reduce_scatter direct",
                                   "reduce_scatter window", "reduce_scatter zero_copy"}));
}

std::vector<Algorithm> one(Collective collective, std::string_view name) {
  return {ops::Registry().find(collective, name)};
}

/// How halving folds ranks depends on the world size.
const std::vector<int> kHalvingWorlds = kIsThreadSanitized ? std::vector<int>{5}
                                        : kIsSanitized     ? std::vector<int>{5, 8}
                                                           : std::vector<int>{5, 6, 8, 13};
INSTANTIATE_TEST_SUITE_P(Halving, ReduceScatterContract,
                         testing::Combine(testing::ValuesIn(one(Collective::ReduceScatter,
                                                                "halving")),
                                          testing::ValuesIn(kHalvingWorlds)),
                         name_contract_case);

}  // namespace kolo::test::algorithms_test
