#include "ops/select.hpp"

#include <string>

#include <gtest/gtest.h>

#include "kolo/error.hpp"

namespace kolo::ops::select_test {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::string_view choose(const Situation& situation, std::string_view wanted = {}) {
  Registry registry;
  if (!wanted.empty()) {
    registry.prefer(std::string(name_of(situation.collective)) + ":" + std::string(wanted));
  }
  return select(registry, situation).name;
}

TEST(SelectTest, InsideANode_TakesSharedMemory) {
  Situation situation{.bytes = 64 * kMiB, .size = 4, .has_window = true};
  EXPECT_EQ(choose(situation), "window");
  situation.bytes = 64;
  EXPECT_EQ(choose(situation), "window_small");
  situation.has_peer_buffers = true;
  EXPECT_EQ(choose(situation), "zero_copy");
}

TEST(SelectTest, BetweenNodes_TakesMessages) {
  EXPECT_EQ(choose({.bytes = 64 * kMiB, .size = 4}), "direct");
  EXPECT_EQ(choose({.bytes = 64 * kMiB, .size = 64}), "ring");
  EXPECT_EQ(choose({.bytes = 64, .size = 64}), "direct");
}

TEST(SelectTest, InsideANode_ResultsAreRankOrdered) {
  const Registry registry;
  for (const int size : {1, 2, 3, 16, 200}) {
    for (std::size_t bytes = 0; bytes < 256 * kMiB; bytes = bytes * 3 + 1) {
      for (const bool has_peer_buffers : {false, true}) {
        const Situation situation{
            .bytes = bytes, .size = size, .has_window = true, .has_peer_buffers = has_peer_buffers};
        const Algorithm& chosen = select(registry, situation);
        EXPECT_TRUE(chosen.rank_ordered) << chosen.name;
        EXPECT_TRUE(has_peer_buffers || chosen.needs != Needs::PeerBuffers) << chosen.name;
      }
    }
  }
}

TEST(SelectTest, Override_IsTakenWhereItCanRun) {
  const Situation everything{
      .bytes = kMiB, .size = 3, .has_window = true, .has_peer_buffers = true, .has_nodes = true};
  const Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    Situation situation = everything;
    situation.collective = algorithm.collective;
    if (algorithm.name == "adasum") continue;
    EXPECT_EQ(choose(situation, algorithm.name), algorithm.name);
  }
}

TEST(SelectTest, Adasum_HasAnAlgorithmOfItsOwn) {
  for (const bool has_window : {false, true}) {
    Situation situation{.bytes = kMiB, .size = 3, .has_window = has_window};
    for (const char* name : {"", "adasum", "ring", "window"}) {
      situation.op = ReduceOp::Adasum;
      EXPECT_EQ(choose(situation, name), "adasum") << name;
      for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum, ReduceOp::Custom}) {
        situation.op = op;
        EXPECT_NE(choose(situation, name), "adasum") << name;
      }
    }
  }
}

TEST(SelectTest, OverrideThatCannotRun_FallsBack) {
  const Situation messages{.bytes = kMiB, .size = 3};
  for (const char* name : {"window", "window_small", "zero_copy"}) {
    EXPECT_EQ(choose(messages, name), "direct") << name;
  }
  const Situation window{.bytes = kMiB, .size = 3, .has_window = true};
  EXPECT_EQ(choose(window, "zero_copy"), "window");
}

TEST(SelectTest, ReduceScatter_DirectForFewRanks_ElseByLength) {
  const auto choose_for = [](int size, std::size_t bytes) {
    return choose({.collective = Collective::ReduceScatter, .bytes = bytes, .size = size});
  };
  EXPECT_EQ(choose_for(1, kMiB), "direct");
  EXPECT_EQ(choose_for(16, 64), "direct");
  EXPECT_EQ(choose_for(16, 64 * kMiB), "direct");
  EXPECT_EQ(choose_for(64, 64), "halving");
  EXPECT_EQ(choose_for(64, kMiB - 1), "halving");
  EXPECT_EQ(choose_for(64, kMiB), "ring");
}

TEST(SelectTest, AllGather_PairwiseUnlessLongAmongManyRanks) {
  const auto choose_for = [](int size, std::size_t bytes) {
    return choose({.collective = Collective::AllGather, .bytes = bytes, .size = size});
  };
  EXPECT_EQ(choose_for(5, 0), "pairwise");
  EXPECT_EQ(choose_for(16, 64 * kMiB), "pairwise");
  EXPECT_EQ(choose_for(64, kMiB - 1), "pairwise");
  EXPECT_EQ(choose_for(64, kMiB), "ring");
}

TEST(SelectTest, SeveralNodes_TakeBothUnlessTiny) {
  for (const Collective collective : {Collective::AllReduce, Collective::ReduceScatter,
                                      Collective::AllGather, Collective::Broadcast}) {
    Situation situation{.collective = collective, .bytes = kMiB, .size = 4, .has_nodes = true};
    EXPECT_EQ(choose(situation), "hierarchical");
    situation.bytes = 64;
    EXPECT_EQ(select(Registry(), situation).needs, Needs::Messages);
    situation.has_nodes = false;
    situation.bytes = kMiB;
    EXPECT_EQ(select(Registry(), situation).needs, Needs::Messages);
    EXPECT_NE(choose(situation, "hierarchical"), "hierarchical");
  }
  EXPECT_EQ(
      choose({.collective = Collective::AllToAll, .bytes = kMiB, .size = 4, .has_nodes = true}),
      "pairwise");
}

TEST(SelectTest, OutputsOfNodes_AreWrittenOnce) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{64}, 64 * kMiB}) {
    const Situation situation{.collective = Collective::AllGather,
                              .bytes = bytes,
                              .size = 4,
                              .has_nodes = true,
                              .shares_output = true};
    for (const char* wanted : {"", "pairwise", "ring", "window", "zero_copy", "hierarchical"}) {
      EXPECT_EQ(choose(situation, wanted), "hierarchical") << wanted;
    }
  }
}

TEST(SelectTest, OtherCollectives) {
  EXPECT_EQ(choose({.collective = Collective::Broadcast, .size = 5}), "binomial");
  EXPECT_EQ(choose({.collective = Collective::AllToAll, .size = 5}), "pairwise");
  for (const Collective collective : {Collective::ReduceScatter, Collective::AllGather,
                                      Collective::Broadcast, Collective::AllToAll}) {
    EXPECT_EQ(choose({.collective = collective, .size = 5, .has_window = true}), "window");
    EXPECT_EQ(
        choose({.collective = collective, .size = 5, .has_window = true, .has_peer_buffers = true}),
        "zero_copy");
  }
  EXPECT_THROW(choose({.collective = Collective::ShareMemory, .size = 5}), InvalidArgument);
  EXPECT_THROW(choose({.collective = Collective::Barrier, .size = 5}), InvalidArgument);
}

Task do_nothing(CollectiveCall) { co_return; }

TEST(RegistryTest, UsersAlgorithm_IsFoundAndChosen) {
  Registry registry;
  registry.add({"mine", Collective::AllReduce, Needs::Messages, false, do_nothing});
  EXPECT_EQ(registry.find(Collective::AllReduce, "mine").run, &do_nothing);
  EXPECT_NE(select(registry, {.bytes = 1, .size = 2}).name, "mine");
  registry.prefer("allreduce:mine");
  EXPECT_EQ(select(registry, {.bytes = 1, .size = 2}).name, "mine");
  EXPECT_THROW(Registry().find(Collective::AllReduce, "mine"), InvalidArgument) << "not global";
}

TEST(RegistryTest, Preferences_AreReadByCollective) {
  Registry registry;
  registry.prefer("");
  EXPECT_EQ(registry.preferred(Collective::AllReduce), "");
  registry.prefer("allreduce:ring,reduce_scatter:halving,broadcast:hierarchical");
  EXPECT_EQ(registry.preferred(Collective::AllReduce), "ring");
  EXPECT_EQ(registry.preferred(Collective::ReduceScatter), "halving");
  EXPECT_EQ(registry.preferred(Collective::Broadcast), "hierarchical");
  EXPECT_EQ(registry.preferred(Collective::AllGather), "");
}

TEST(RegistryTest, WrongPreferences_NameEntryAndChoices) {
  const auto text_of = [](std::string_view entries) -> std::string {
    try {
      Registry().prefer(entries);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::string variable = "KOLO_ALGORITHM, entry ";
  const std::string form =
      ": expected collective:algorithm, such as allreduce:ring,broadcast:binomial";
  EXPECT_EQ(text_of("ring"), variable + "\"ring\"" + form);
  EXPECT_EQ(text_of("allreduce:ring,"), variable + "\"\"" + form);
  EXPECT_EQ(text_of("allgather:ring,barrier:ring"),
            variable +
                "\"barrier:ring\": there is no collective of that name; choose one of allreduce, "
                "reduce_scatter, allgather, broadcast, alltoall");
  EXPECT_EQ(text_of("broadcast:ring"),
            variable +
                "\"broadcast:ring\": broadcast has no algorithm of that name; choose one of "
                "binomial, window, zero_copy, hierarchical");
  EXPECT_NE(text_of("broadcast:"), "accepted");
  EXPECT_EQ(text_of("allreduce:ring,broadcast:window,allreduce:direct"),
            variable + "\"allreduce:direct\": allreduce is named twice");
}

TEST(RegistryTest, NamesAreUniquePerCollective) {
  Registry registry;
  EXPECT_THROW(registry.add({"ring", Collective::AllReduce, Needs::Messages, false, do_nothing}),
               InvalidArgument);
  registry.add({"direct", Collective::AllGather, Needs::Messages, false, do_nothing});
  EXPECT_EQ(registry.find(Collective::AllGather, "direct").run, &do_nothing);
  EXPECT_NE(registry.find(Collective::AllReduce, "direct").run, &do_nothing);
}

TEST(RegistryTest, IncompleteAlgorithms_AreRefused) {
  Registry registry;
  EXPECT_THROW(registry.add({"", Collective::AllReduce, Needs::Messages, false, do_nothing}),
               InvalidArgument);
  EXPECT_THROW(registry.add({"a,b", Collective::AllReduce, Needs::Messages, false, do_nothing}),
               InvalidArgument);
  EXPECT_THROW(registry.add({"empty", Collective::AllReduce, Needs::Messages, false, nullptr}),
               InvalidArgument);
}

}  // namespace kolo::ops::select_test
