// Process sets whose operations are matched by the order of their submission.
#include <chrono>
#include <cstddef>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/all_collectives.hpp"
#include "runtime/deaths.hpp"
#include "runtime/every_world.hpp"
#include "runtime/values.hpp"
#include "support/memory_store.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test::matching_test {

using namespace std::chrono_literals;

class ByOrderTest : public EveryWorldTest {
 protected:
  /// Runs `body` with a set of all ranks whose operations are matched by order.
  void run_by_order(const std::function<void(Runtime&, ProcessSet&)>& body, Config config) {
    Setting setting = GetParam();
    setting.config = std::move(config);
    run_runtimes(setting, [&](Runtime& runtime) {
      body(runtime, runtime.add_process_set(runtime.world().ranks(), Matching::ByOrder));
    });
  }
  void run_by_order(const std::function<void(Runtime&, ProcessSet&)>& body) {
    run_by_order(body, GetParam().config);
  }
};

INSTANTIATE_TEST_SUITE_P(, ByOrderTest, testing::ValuesIn(cpu_settings()), [](const auto& setting) {
  return setting.param.name + "Np" + std::to_string(setting.param.size);
});

TEST_P(ByOrderTest, RunsEverything_WithoutAgreeing) {
  run_by_order([&](Runtime&, ProcessSet& set) {
    EXPECT_EQ(set.matching(), Matching::ByOrder);
    const auto before = set.metrics();
    for (int round = 0; round < 3; ++round) expect_all_work(set);
    const auto after = set.metrics();
    barrier();  // a rank that leaves agrees with the others on that
    EXPECT_EQ(after.exchanges, before.exchanges);
    EXPECT_EQ(after.negotiations, 0U);
  });
}

TEST_P(ByOrderTest, MadeThroughAStore_RunsEverything) {
  MemoryStore store;
  run([&](Runtime& runtime) {
    expect_all_work(runtime.add_process_set(runtime.world().ranks(), store, Matching::ByOrder));
  });
}

// Names differ between ranks and recur in each, which is ahead of the others in turn.
TEST_P(ByOrderTest, OperationsInFlight_AreMatchedByOrder) {
  run_by_order([&](Runtime& runtime, ProcessSet& set) {
    const int rank = runtime.rank();
    for (std::size_t round = 0; round < 5; ++round) {
      std::vector<Tensor> tensors;
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < 20; ++i) {
        if (i % static_cast<std::size_t>(size()) == static_cast<std::size_t>(rank)) {
          std::this_thread::sleep_for(200us);
        }
        const int root = static_cast<int>(i) % size();
        Tensor& tensor = tensors.emplace_back(i % 3 == 0 ? 3000 : 7);
        tensor.fill([&](std::size_t at) { return input_value(rank, at, i + round); });
        const std::string name = std::to_string(rank);
        handles.push_back(
            i % 2 == 0 ? allreduce_async(tensor.view(), tensor.view(),
                                         {.op = ReduceOp::Sum, .name = name, .process_set = &set})
                       : broadcast_async(tensor.view(), root, {.name = name, .process_set = &set}));
      }
      for (std::size_t i = 0; i < handles.size(); ++i) {
        handles[i].wait();
        tensors[i].expect(
            [&](std::size_t at) {
              return i % 2 == 0 ? input_sum(size(), at, i + round)
                                : input_value(static_cast<int>(i) % size(), at, i + round);
            },
            "operation " + std::to_string(i));
      }
    }
  });
}

/// Runs operations of which `odd` runs another one, after two that agree, and returns the text of
/// the error, which every rank gets.
class DisagreementTest : public ByOrderTest {
 protected:
  using Run = std::function<void(ProcessSet&)>;

  void expect_mismatch(const Run& usual, const Run& other, const std::string& usual_text,
                       const std::string& other_text) {
    for (const int odd : {0, size() - 1}) {
      run_by_order([&](Runtime& runtime, ProcessSet& set) {
        expect_sum_works(set, "first");
        expect_sum_works(set, "second");
        const std::string text = text_thrown_by<MismatchError>([&] {
          (runtime.rank() == odd ? other : usual)(set);
          // An operation in which a rank only sends ends there.
          for (int more = 0; more < 3; ++more) expect_sum_works(set, "more");
        });
        expect_contains(text, "operation 3 of the set");
        expect_contains(text, usual_text);
        expect_contains(text, other_text);
        expect_sum_works(runtime, "others go on");
      });
    }
  }
};

std::vector<Setting> settings_of_disagreement() {
  const Setting messages{.name = "Messages",
                         .size = 3,
                         .network = {.longest_delay = 100us, .has_shared_memory = false}};
  // Ranks that submit different operations may learn so only after they have read shared memory
  // that another writes: a race, though what they have read is nobody's result.
  if (kIsThreadSanitized) return {messages};
  return {Setting{.name = "Shared", .size = 2}, Setting{.name = "Shared", .size = 3}, messages,
          Setting{.name = "Nodes", .size = 4, .network = {.nodes = 2, .longest_delay = 100us}}};
}

INSTANTIATE_TEST_SUITE_P(, DisagreementTest, testing::ValuesIn(settings_of_disagreement()),
                         [](const auto& setting) {
                           return setting.param.name + "Np" + std::to_string(setting.param.size);
                         });

void sum(ProcessSet& set, std::int64_t count, DType dtype, ReduceOp op = ReduceOp::Sum,
         double prescale = 1.0) {
  Tensor tensor(count, dtype);
  tensor.fill([](std::size_t) { return 1.0; });
  allreduce(tensor.view(), tensor.view(), {.op = op, .prescale = prescale, .process_set = &set});
}

TEST_P(DisagreementTest, NamesBothOperations) {
  const auto sum_of = [](std::int64_t count, DType dtype, ReduceOp op = ReduceOp::Sum,
                         double prescale = 1.0) -> Run {
    return [=](ProcessSet& set) { sum(set, count, dtype, op, prescale); };
  };
  expect_mismatch(
      sum_of(12, DType::Float32),
      [](ProcessSet& set) {
        Tensor tensor(12);
        tensor.fill([](std::size_t) { return 1.0; });
        broadcast(tensor.view(), 1, {.process_set = &set});
      },
      "allreduce (Sum) of 12 elements of float32", "broadcast from rank 1 of 12 elements");
  expect_mismatch(sum_of(5000, DType::Float32), sum_of(3, DType::Float32),
                  "allreduce (Sum) of 5000 elements of float32",
                  "allreduce (Sum) of 3 elements of float32");
  expect_mismatch(sum_of(8, DType::Float64), sum_of(8, DType::Float64, ReduceOp::Sum, 2.0),
                  "allreduce (Sum) of 8 elements of float64",
                  "one of another shape, factor, compression, placement or purpose");
  expect_mismatch([](ProcessSet& set) { barrier({.process_set = &set}); },
                  sum_of(8, DType::Float32), "barrier", "allreduce (Sum) of 8 elements of float32");
  expect_mismatch(
      [](ProcessSet& set) {
        sum(set, 8, DType::Float32);
        sum(set, 9, DType::Float32);
      },
      sum_of(9, DType::Float32), "allreduce (Sum) of 8 elements", "allreduce (Sum) of 9 elements");
}

// Every rank's result takes something from the odd one, through others where need be: none may end
// the operation with it.
TEST_P(DisagreementTest, ADifferentOperation_GivesNoRankAResult) {
  for (const std::int64_t count : {1, 3000, 400'000}) {
    for (int odd = 0; odd < size(); ++odd) {
      run_by_order([&](Runtime& runtime, ProcessSet& set) {
        expect_sum_works(set, "first");
        const ReduceOp op = runtime.rank() == odd ? ReduceOp::Max : ReduceOp::Sum;
        const std::string text =
            text_thrown_by<MismatchError>([&] { sum(set, count, DType::Float32, op); });
        expect_contains(text, "operation 2 of the set");
        expect_contains(text, "allreduce (Sum) of " + std::to_string(count) + " elements");
        expect_contains(text, "allreduce (Max) of " + std::to_string(count) + " elements");
      });
    }
  }
}

// What a rank runs without others is compared all the same, and none of it takes the place of what
// they run.
TEST_P(DisagreementTest, ARankThatIsFarAhead_GivesNoRankAResult) {
  const std::vector<Run> others{
      [](ProcessSet& set) { sum(set, 16, DType::Float32, ReduceOp::Max); },
      [](ProcessSet& set) { sum(set, 7, DType::Float32); },
      [](ProcessSet& set) { sum(set, 16, DType::Int32); },
      [](ProcessSet& set) {
        Tensor tensor(16);
        broadcast(tensor.view(), set.rank(), {.process_set = &set});
        sum(set, 16, DType::Float32);
      }};
  for (const Run& other : others) {
    for (const int odd : {0, size() - 1}) {
      std::latch is_ahead(1);
      run_by_order([&](Runtime& runtime, ProcessSet& set) {
        expect_sum_works(set, "first");
        if (runtime.rank() != odd) {
          is_ahead.wait();
          EXPECT_THROW(other(set), MismatchError);
          return;
        }
        Tensor tensor(16);
        tensor.fill([](std::size_t) { return 1.0; });
        const TensorView none{tensor.view().data, DType::Float32, {0}, {}};
        const AllreduceOptions options{.op = ReduceOp::Sum, .process_set = &set};
        for (int more = 0; more < 5; ++more)
          static_cast<void>(allreduce_async(none, none, options));
        Handle last = allreduce_async(tensor.view(), tensor.view(), options);
        {
          const CountDown done(is_ahead);
          EXPECT_FALSE(last.wait_for(20ms));  // as far ahead as it gets
        }
        EXPECT_THROW(last.wait(), MismatchError);
      });
    }
  }
}

TEST_P(DisagreementTest, OperationsThatSendNothing) {
  run_by_order([&](Runtime& runtime, ProcessSet& set) {
    expect_sum_works(set, "first");
    EXPECT_THROW(
        {
          sum(set, 0, runtime.rank() == 0 ? DType::Int32 : DType::Float32);
          for (int more = 0; more < 5; ++more) sum(set, 8, DType::Float32);
        },
        MismatchError);
  });
}

TEST_P(DisagreementTest, AnOperationThatIsNotSubmitted_EndsTheSetAtItsDeadline) {
  Config config = test_config();
  config.timeout = 1s;
  for (const int missing : {0, size() - 1}) {
    run_by_order(
        [&](Runtime& runtime, ProcessSet& set) {
          expect_sum_works(set, "first");
          if (runtime.rank() != missing) {
            const std::string text =
                text_thrown_by<TimeoutError>([&] { sum(set, 12, DType::Float32); });
            expect_contains(text, "operation 2 of the set");
            if (size() == 2 || GetParam().name == "Shared") {
              expect_contains(text, "rank " + std::to_string(missing) + " did not submit");
            }
          }
          barrier({.timeout = 60s});
          EXPECT_THROW(sum(set, 12, DType::Float32), TimeoutError);  // it is over for all
        },
        config);
  }
}

TEST_P(DisagreementTest, ARankThatLeaves_EndsWhatItHasNotSubmitted) {
  for (int leaver = 0; leaver < size(); ++leaver) {
    run_by_order([&](Runtime& runtime, ProcessSet& set) {
      expect_sum_works(set, "first");
      if (runtime.rank() == leaver) return;
      const std::string text = text_thrown_by<ShutdownError>([&] { sum(set, 12, DType::Float32); });
      expect_contains(text, "allreduce");
      expect_contains(text, "shut Kolo down");
    });
  }
}

// The data of an operation in which nobody awaited them must not become those of a later one, even
// if the rank that gets them no longer knows what it ran instead.
TEST_P(DisagreementTest, DataThatNobodyAwaited_AreNotTakenLater) {
  run_by_order([&](Runtime& runtime, ProcessSet& set) {
    const auto expect_broadcast = [&](int root, double value) {
      Tensor tensor(8);
      tensor.fill([&](std::size_t) { return value + runtime.rank(); });
      broadcast(tensor.view(), root, {.process_set = &set});
      tensor.expect([&](std::size_t) { return value + root; }, std::to_string(value));
    };
    expect_sum_works(set, "first");
    const std::string text = text_thrown_by<MismatchError>([&] {
      expect_broadcast(runtime.rank() == 1 ? 1 : 0, 100.0);  // each of them only sends
      for (int more = 1; more <= 5; ++more) expect_broadcast(size() - 1, 200.0 * more);
      for (int more = 1; more <= 5; ++more) expect_broadcast(0, 2000.0 * more);
      for (int more = 0; more < 3; ++more) expect_sum_works(set, "more");
    });
    expect_contains(text, " of the set, where rank");
  });
}

TEST_P(DisagreementTest, ARankThatRemovesTheSet_HasLeft) {
  MemoryStore store;
  for (const int odd : {0, size() - 1}) {
    run_runtimes(GetParam(), [&](Runtime& runtime) {
      ProcessSet& set = runtime.add_process_set(runtime.world().ranks(), store, Matching::ByOrder);
      expect_sum_works(set, "first");
      const std::string text = text_thrown_by<ShutdownError>([&] {
        if (runtime.rank() == odd) runtime.remove_process_set(set);
        for (int more = 0; more < 3; ++more) sum(set, 12, DType::Float32);
      });
      expect_contains(text, "rank " + std::to_string(odd) + " has closed the process set");
      expect_contains(text, "operation 2 of the set, allreduce (Sum) of 12 elements of float32");
    });
  }
}

// Each round, threads are elsewhere in the set's steps when it is removed.
TEST_P(DisagreementTest, ASetThatHasEnded_IsRemoved) {
  MemoryStore store;
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    for (int round = 0; round < 8; ++round) {
      ProcessSet& set = runtime.add_process_set(runtime.world().ranks(), store, Matching::ByOrder);
      const ReduceOp op = runtime.rank() == 0 ? ReduceOp::Max : ReduceOp::Sum;
      EXPECT_THROW(
          {
            for (int more = 0; more < 3; ++more) sum(set, 50'000, DType::Float32, op);
          },
          MismatchError);
      runtime.remove_process_set(set);
    }
  });
}

TEST_P(DisagreementTest, ADeadRank_IsALoss) {
  for (const int victim : {0, size() - 1}) {
    std::vector<ProcessSet*> sets(static_cast<std::size_t>(size()));
    run_with_death(
        GetParam(), victim,
        [&](Runtime& runtime) {
          ProcessSet& set = runtime.add_process_set(runtime.world().ranks(), Matching::ByOrder);
          sets[static_cast<std::size_t>(runtime.rank())] = &set;
          expect_sum_works(set, "first");
        },
        [&](FakeWorld&) {
          ProcessSet& set = *sets[static_cast<std::size_t>(rank())];
          EXPECT_THROW(
              {
                for (int more = 0; more < 3; ++more) sum(set, 12, DType::Float32);
              },
              PeerLostError);
        });
  }
}

TEST_P(DisagreementTest, InvalidArguments_ThrowAtTheCallAndSubmitNothing) {
  run_by_order([&](Runtime& runtime, ProcessSet& set) {
    Tensor tensor(3);
    if (runtime.rank() == 0) {
      const std::string text = text_thrown_by<InvalidArgument>(
          [&] { broadcast(tensor.view(), size(), {.name = "x", .process_set = &set}); });
      expect_contains(text, "broadcast 'x' on process set");
      expect_contains(text, "is not a member");
      EXPECT_THROW(static_cast<void>(join(&set)), InvalidArgument);
    }
    expect_sum_works(set, "then");
  });
}

// A rank has left so long ago that this one, which is ahead, no longer knows what it ran then.
TEST(OwnSetsErrorTest, ARankThatLeavesFarBehind_EndsWhatItHasNotSubmitted) {
  Setting setting{.size = 3, .network = {.has_shared_memory = false}};
  setting.config.timeout = 10s;
  std::latch are_ahead(2);
  run_runtimes(setting, [&](Runtime& runtime) {
    ProcessSet& set = runtime.add_process_set({0, 1, 2}, Matching::ByOrder);
    if (runtime.rank() == 1) return are_ahead.wait();
    std::vector<Tensor> tensors;
    std::vector<Handle> handles;
    while (handles.size() < 9) {
      Tensor& tensor = tensors.emplace_back(8);
      tensor.fill([](std::size_t) { return 1.0; });
      if (handles.size() < 8) {
        handles.push_back(broadcast_async(tensor.view(), 0, {.process_set = &set}));
      } else {
        handles.push_back(allreduce_async(tensor.view(), tensor.view(), {.process_set = &set}));
      }
    }
    {
      const CountDown done(are_ahead);
      for (std::size_t i = 0; i < 8; ++i) handles[i].wait();
    }
    expect_contains(text_thrown_by<ShutdownError>([&] { handles.back().wait(); }),
                    "rank 1 shut Kolo down or removed the set before it had submitted operation 1");
  });
}

}  // namespace kolo::test::matching_test
