// Collectives of byte strings and JSON.
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "kolo/json_objects.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::objects_test {

/// A different length on every rank, empty on rank 0, with zero bytes.
std::string bytes_of(int rank) {
  std::string bytes(static_cast<std::size_t>(rank) * 700, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i * 7 + static_cast<std::size_t>(rank));
  }
  return bytes;
}

class ObjectsTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(, ObjectsTest, testing::Values(1, 2, 3, 4));

TEST_P(ObjectsTest, BroadcastFromEveryRoot) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    for (int root = 0; root < runtime.size(); ++root) {
      EXPECT_EQ(broadcast_object(bytes_of(runtime.rank()), root), bytes_of(root));
      EXPECT_EQ(
          broadcast_object(bytes_of(runtime.rank()), root, {.name = "of " + std::to_string(root)}),
          bytes_of(root));
    }
  });
}

TEST_P(ObjectsTest, GatherInTheOrderOfRanks) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    for (int round = 0; round < 2; ++round) {
      const std::vector<std::string> all = allgather_object(bytes_of(runtime.rank()));
      ASSERT_EQ(all.size(), static_cast<std::size_t>(runtime.size()));
      for (int r = 0; r < runtime.size(); ++r) {
        EXPECT_EQ(all[static_cast<std::size_t>(r)], bytes_of(r));
      }
    }
  });
}

TEST_P(ObjectsTest, SeveralThreadsAtOnce) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&runtime, t] {
        const std::string name = "thread " + std::to_string(t);
        const std::string mine = name + bytes_of(runtime.rank());
        const OperationOptions options{.name = name, .process_set = &runtime.world()};
        EXPECT_EQ(broadcast_object(mine, 0, options), name + bytes_of(0));
        EXPECT_EQ(allgather_object(mine, options).back(), name + bytes_of(runtime.size() - 1));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_P(ObjectsTest, OnAProcessSet) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    const int last = runtime.size() - 1;
    ProcessSet& set =
        runtime.add_process_set(last == 0 ? std::vector<int>{0} : std::vector<int>{last, 0});
    const OperationOptions options{.process_set = &set};
    if (!set.included()) {
      EXPECT_THROW(broadcast_object("x", last, options), InvalidArgument);
      EXPECT_THROW(allgather_object("x", options), InvalidArgument);
      return;
    }
    EXPECT_EQ(broadcast_object(bytes_of(runtime.rank()), last, options), bytes_of(last));
    std::vector<std::string> all;
    for (const int member : set.ranks()) all.push_back(bytes_of(member) + "x");
    EXPECT_EQ(allgather_object(bytes_of(runtime.rank()) + "x", options), all);
  });
}

TEST_P(ObjectsTest, AWrongRootIsAnErrorOnAllRanks) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    const int wrong = runtime.rank() == 0 ? runtime.size() : 0;
    expect_contains(text_thrown_by<InvalidArgument>([&] { broadcast_object("x", wrong); }),
                    "root rank " + std::to_string(runtime.size()));
    EXPECT_EQ(broadcast_object(bytes_of(runtime.rank()), 0), "");
  });
}

TEST_P(ObjectsTest, JoinedRanksGiveEmptyObjects) {
  if (GetParam() == 1) GTEST_SKIP() << "nobody is left to give an object";
  run_runtimes(GetParam(), [](Runtime& runtime) {
    if (runtime.rank() == 0) {
      join();
      return;
    }
    const std::vector<std::string> bytes = allgather_object("x");
    EXPECT_EQ(bytes.front(), "");
    EXPECT_EQ(bytes.back(), "x");
    EXPECT_TRUE(allgather_object(nlohmann::json(true)).front().is_null());
    join();
  });
}

TEST_P(ObjectsTest, Json) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    const auto value = [](int rank) {
      return nlohmann::json{{"rank", rank},
                            {"not utf-8", std::string("\xff\xfe")},
                            {"infinite", std::numeric_limits<double>::infinity()},
                            {"third", 1.0 / 3.0},
                            {"list", std::vector<int>(static_cast<std::size_t>(rank), 7)}};
    };
    const int root = runtime.size() - 1;
    EXPECT_EQ(broadcast_object(value(runtime.rank()), root), value(root));
    const std::vector<nlohmann::json> all = allgather_object(value(runtime.rank()));
    for (int r = 0; r < runtime.size(); ++r) {
      EXPECT_EQ(all.at(static_cast<std::size_t>(r)), value(r));
    }
    const nlohmann::ordered_json ordered{{"z", 1}, {"a", 2}};
    EXPECT_EQ(broadcast_object(ordered, 0).dump(), R"({"z":1,"a":2})");
    EXPECT_EQ(broadcast_object("a literal is bytes", 0), "a literal is bytes");
  });
}

}  // namespace kolo::test::objects_test
