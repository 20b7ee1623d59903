// What functions built on collectives use: comparing values, refusing a call, sets and names.
#include "kolo/agreement.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/objects.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::agreement_test {

class AgreementTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(, AgreementTest, testing::Values(2, 3));

TEST_P(AgreementTest, EqualValues_Pass) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    check_agreement("train()", {{"epochs", "3"}, {"text", "with\nlines"}});
    check_agreement("train()", {});
    // A rank without values has none to compare.
    std::vector<NamedValue> values;
    if (runtime.rank() > 0) values = {{"epochs", "3"}};
    check_agreement("train()", values, {}, {.name = "own"});
  });
}

TEST_P(AgreementTest, OtherValues_AreAMismatchOnAllRanks) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    const int last = runtime.size() - 1;
    const std::string own = runtime.rank() == last ? "4" : "3";
    const auto text = [&](const auto&... advice) {
      return text_thrown_by<MismatchError>(
          [&] { check_agreement("train()", {{"seed", "1"}, {"epochs", own}}, {}, {}, advice...); });
    };
    const std::string expected =
        "train(): ranks disagree: epochs is 3 on rank 0, and epochs is 4 "
        "on rank " +
        std::to_string(last) + ". ";
    EXPECT_EQ(text(), expected + "Give the same on every rank.");
    EXPECT_EQ(text("Ask again."), expected + "Ask again.");
  });
}

TEST_P(AgreementTest, AProblemOnOneRank_IsAnErrorOnAll) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    const std::string problem = runtime.rank() == 1 ? "no data" : "";
    const auto check = [&] { check_agreement("train()", {{"own", problem}}, problem); };
    EXPECT_EQ(text_thrown_by<InvalidArgument>(check), "train(): on rank 1: no data");
  });
}

TEST_P(AgreementTest, JoinedRanks_AreLeftOut) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    if (runtime.rank() > 0) check_agreement("train()", {{"epochs", "3"}});
    join();
  });
}

TEST_P(AgreementTest, RefusedCall_EndsOnAllRanks) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    float value = 1;
    const TensorView view{&value, DType::Float32, {1}, {}};
    const auto call = [&] {
      if (runtime.rank() == 1) refuse(Collective::AllReduce, "the input is odd", {.name = "sum"});
      allreduce(view, view, {.name = "sum"});
    };
    const std::string text = text_thrown_by<InvalidArgument>(call);
    expect_contains(text, "the input is odd");
    expect_contains(text, "rank 1");
  });
}

TEST_P(AgreementTest, MemberSet_IsTheWorldOrAnotherSetOfThisRank) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    ProcessSet& first = runtime.add_process_set({0});
    EXPECT_EQ(&member_set(nullptr), &runtime.world());
    if (runtime.rank() == 0) {
      EXPECT_EQ(&member_set(&first), &first);
    } else {
      EXPECT_THROW(member_set(&first), InvalidArgument);
      EXPECT_THROW(static_cast<void>(first.next_prefix("layer")), InvalidArgument);
    }
  });
}

/// It must not meet an allgather_object() without a name on another rank.
TEST_P(AgreementTest, CheckWithoutAName_HasOneOfItsOwn) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    ProcessSet& world = runtime.world();
    const std::string own = world.next_name("check_agreement");
    const std::string other = world.next_name("allgather_object");
    join();  // names are counted from the first again
    check_agreement("train()", {});
    EXPECT_NE(world.next_name("check_agreement"), own);
    EXPECT_EQ(world.next_name("allgather_object"), other);
  });
}

/// Operations of an object made before a join must not meet those of one made after it.
TEST_P(AgreementTest, Prefixes_DoNotRepeatAfterAJoin) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    ProcessSet& world = runtime.world();
    const std::string prefix = world.next_prefix("layer");
    const std::string name = world.next_name("sum");
    EXPECT_NE(world.next_prefix("layer"), prefix);
    const std::vector<std::string> all = allgather_object(prefix);
    EXPECT_EQ(all, std::vector<std::string>(all.size(), prefix));
    join();
    EXPECT_EQ(world.next_name("sum"), name);
    EXPECT_NE(world.next_prefix("layer"), prefix);
  });
}

}  // namespace kolo::test::agreement_test
