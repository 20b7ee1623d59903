// What users see when ranks disagree, are late, leave or die.
#include <unistd.h>

#include <atomic>
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
#include "kolo/shared_buffer.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/fault_world.hpp"

namespace kolo::test {
namespace {

using namespace std::chrono_literals;

struct Disagreement {
  std::string what;
  std::string field;
  std::string usual_value;
  std::string other_value;
  std::function<Handle(const Tensor&)> usual;
  std::function<Handle(const Tensor&)> other;
};

TensorView with_shape(const Tensor& tensor, std::vector<std::int64_t> shape,
                      DType dtype = DType::Float32) {
  TensorView view = tensor.view();
  view.shape = std::move(shape);
  view.dtype = dtype;
  return view;
}

Handle reduce(const TensorView& view, AllreduceOptions options = {}) {
  options.name = "x";
  return allreduce_async(view, view, options);
}

Handle gather(const TensorView& view) {
  return allgather_async(
      view, [](const std::vector<std::int64_t>&) -> void* { return nullptr; }, {.name = "x"});
}

std::vector<Disagreement> all_disagreements() {
  const auto usual = [](const Tensor& t) { return reduce(with_shape(t, {3, 4})); };
  return {
      {"DType", "dtype", "float32", "int64", usual,
       [](const Tensor& t) { return reduce(with_shape(t, {3, 4}, DType::Int64)); }},
      {"Shape", "shape", "[3, 4]", "[4, 4]", usual,
       [](const Tensor& t) { return reduce(with_shape(t, {4, 4})); }},
      {"Dimensions", "shape", "[3, 4]", "[12]", usual,
       [](const Tensor& t) { return reduce(with_shape(t, {12})); }},
      {"Operation", "reduction", "Average", "Max", usual,
       [](const Tensor& t) { return reduce(with_shape(t, {3, 4}), {.op = ReduceOp::Max}); }},
      {"Prescale", "prescale", "1", "0.5", usual,
       [](const Tensor& t) { return reduce(with_shape(t, {3, 4}), {.prescale = 0.5}); }},
      {"Postscale", "postscale", "1", "0.25", usual,
       [](const Tensor& t) { return reduce(with_shape(t, {3, 4}), {.postscale = 0.25}); }},
      {"Compression", "compression", "none", "bf16", usual,
       [](const Tensor& t) {
         return reduce(with_shape(t, {3, 4}), {.compression = Compression::bf16()});
       }},
      {"Collective", "operation", "allreduce", "broadcast", usual,
       [](const Tensor& t) { return broadcast_async(with_shape(t, {3, 4}), 0, {.name = "x"}); }},
      {"Root", "root", "0", "1",
       [](const Tensor& t) { return broadcast_async(with_shape(t, {5}), 0, {.name = "x"}); },
       [](const Tensor& t) { return broadcast_async(with_shape(t, {5}), 1, {.name = "x"}); }},
      {"RowShape", "shape", "[4]", "[5]",
       [](const Tensor& t) { return gather(with_shape(t, {2, 4})); },
       [](const Tensor& t) { return gather(with_shape(t, {2, 5})); }},
  };
}

class MismatchTest : public testing::TestWithParam<Disagreement> {};

INSTANTIATE_TEST_SUITE_P(, MismatchTest, testing::ValuesIn(all_disagreements()),
                         [](const auto& item) { return item.param.what; });

/// All ranks but `odd` submit the usual; all get the same error; "y" works afterwards.
void expect_mismatch(Runtime& runtime, const Disagreement& item, int odd) {
  const Tensor tensor(64);
  Handle handle = runtime.rank() == odd ? item.other(tensor) : item.usual(tensor);
  const std::string text = text_thrown_by<MismatchError>([&] { handle.wait(); });
  expect_contains(text, "'x'");
  expect_contains(text, item.field);
  // Two ranks that disagree are enough; those that come later find the same error.
  expect_contains(text, item.usual_value + " on rank");
  expect_contains(text, item.other_value + " on rank " + std::to_string(odd));
  expect_sum_works(runtime, "y");
}

void PrintTo(const Disagreement& item, std::ostream* out) { *out << item.what; }

TEST_P(MismatchTest, AtTheFirstUseRaisesOnEveryRank) {
  for (const int size : {2, 3}) {
    for (const bool has_shared_memory : {true, false}) {
      const Setting setting{.size = size, .network = {.has_shared_memory = has_shared_memory}};
      run_runtimes(setting, [&](Runtime& runtime) {
        expect_mismatch(runtime, GetParam(), size - 1);
        expect_mismatch(runtime, GetParam(), 0);
      });
    }
  }
}

TEST_P(MismatchTest, UnderAKnownNameRaisesOnEveryRank) {
  run_runtimes(3, [&](Runtime& runtime) {
    Tensor tensor(64);
    // Both forms become known, then they meet.
    for (int step = 0; step < 3; ++step) {
      const bool can_run = GetParam().what != "RowShape";  // those give no memory for the result
      if (can_run) GetParam().usual(tensor).wait();
      if (can_run && step == 1) GetParam().other(tensor).wait();
    }
    expect_mismatch(runtime, GetParam(), 2);
    expect_mismatch(runtime, GetParam(), 0);
  });
}

TEST(MismatchTextTest, PlacementInSharedMemoryMustAgree) {
  run_runtimes(2, [](Runtime& runtime) {
    const SharedBuffer buffer(1024, {.name = "memory"});
    const std::size_t offset = runtime.rank() == 0 ? 0 : 64;
    Handle handle = allreduce_async(buffer, offset, 8, DType::Float32, {.name = "x"});
    const std::string text = text_thrown_by<MismatchError>([&] { handle.wait(); });
    expect_contains(text, "memory + 0 on rank 0");
    expect_contains(text, "memory + 64 on rank 1");
    expect_sum_works(runtime, "y");
  });
}

TEST(MismatchTextTest, SharedBuffersOfUnequalSizesAreRefused) {
  run_runtimes(2, [](Runtime& runtime) {
    const std::size_t size = 64 * (1 + static_cast<std::size_t>(runtime.rank()));
    const std::string text =
        text_thrown_by<MismatchError>([&] { SharedBuffer(size, {.name = "memory"}); });
    expect_contains(text, "[64] on rank 0");
    expect_contains(text, "[128] on rank 1");
    expect_sum_works(runtime, "y");
  });
}

class TimeoutTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(, TimeoutTest,
                         testing::Values(Setting{.name = "Shared", .size = 3},
                                         Setting{.name = "Messages",
                                                 .size = 3,
                                                 .network = {.nodes = 3,
                                                             .longest_delay = 100us,
                                                             .rendezvous = true}}),
                         [](const auto& setting) { return setting.param.name; });

TEST_P(TimeoutTest, RaisesOnAllRanksTheLateOneToo) {
  for (const int late : {2, 0}) {
    for (const bool is_known : {false, true}) {
      run_runtimes(GetParam(), [&](Runtime& runtime) {
        if (is_known) expect_sum_works(runtime, "x");
        Tensor tensor(5);
        AllreduceOptions options{.op = ReduceOp::Sum, .name = "x"};
        if (runtime.rank() != late) {
          options.timeout = 100ms;
        } else {
          std::this_thread::sleep_for(300ms);  // by now the others have given up
        }
        Handle handle = allreduce_async(tensor.view(), tensor.view(), options);
        const std::string text = text_thrown_by<TimeoutError>([&] { handle.wait(); });
        expect_contains(text, "'x'");
        expect_contains(text, "the deadline passed on ");
        expect_contains(text, "while rank " + std::to_string(late) + " had not submitted it");
        expect_sum_works(runtime, "x");
        expect_sum_works(runtime, "y");
      });
    }
  }
}

TEST_P(TimeoutTest, OneRankAloneCanHaveADeadline) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    Tensor tensor(5);
    if (runtime.rank() == 2) std::this_thread::sleep_for(200ms);
    AllreduceOptions options{.name = "x"};
    if (runtime.rank() == 1) options.timeout = 50ms;
    Handle handle = allreduce_async(tensor.view(), tensor.view(), options);
    const std::string text = text_thrown_by<TimeoutError>([&] { handle.wait(); });
    expect_contains(text, "passed on rank 1 while rank 2 had not");
    expect_sum_works(runtime, "x");
  });
}

TEST_P(TimeoutTest, TheDefaultIsTheConfigured) {
  Setting setting = GetParam();
  setting.config.timeout = 300ms;
  run_runtimes(setting, [&](Runtime& runtime) {
    if (runtime.rank() == 1) {
      std::this_thread::sleep_for(600ms);
      return;
    }
    Tensor tensor(5);
    EXPECT_THROW(broadcast(tensor.view(), 0, {.name = "x"}), TimeoutError);
  });
}

TEST_P(TimeoutTest, StallsAreReportedWithTheRanksThatAreMissing) {
  Setting setting = GetParam();
  setting.config.stall_warn = 50ms;
  setting.config.log_level = "warn";
  testing::internal::CaptureStderr();
  run_runtimes(setting, [&](Runtime& runtime) {
    if (runtime.rank() == 1) std::this_thread::sleep_for(400ms);
    expect_sum_works(runtime, "slow one");
  });
  const std::string text = testing::internal::GetCapturedStderr();
  expect_contains(text, "stalled: 'slow one' on process set world");
  expect_contains(text, "ranks 0, 2 waited for longer than KOLO_STALL_WARN");
  expect_contains(text, "rank 1 did not submit it yet");
}

TEST_P(TimeoutTest, NoStallReportWhereItIsSwitchedOff) {
  Setting setting = GetParam();
  setting.config.stall_warn = 0ns;
  setting.config.log_level = "warn";
  testing::internal::CaptureStderr();
  run_runtimes(setting, [&](Runtime& runtime) {
    if (runtime.rank() == 1) std::this_thread::sleep_for(150ms);
    expect_sum_works(runtime, "slow one");
  });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_P(TimeoutTest, AShutdownElsewhereEndsWhatIsPending) {
  for (const int leaving : {0, 2}) {
    run_runtimes(GetParam(), [&](Runtime& runtime) {
      expect_sum_works(runtime, "before");
      if (runtime.rank() == leaving) {
        runtime.shutdown();
        runtime.shutdown();  // does nothing
      }
      Tensor tensor(5);
      for (int attempt = 0; attempt < 3; ++attempt) {
        const std::string text = text_thrown_by<ShutdownError>([&] {
          allreduce(tensor.view(), tensor.view(), {.name = "x"});
        });
        expect_contains(text, "'x'");
        if (runtime.rank() != leaving) {
          expect_contains(text, "rank " + std::to_string(leaving) + " shut Kolo down");
        } else {
          expect_contains(text, "on this rank");
        }
      }
    });
  }
}

TEST_P(TimeoutTest, DeathEndsWhatIsPendingOnAllSurvivors) {
  for (const int victim : {0, 2}) {
    Setting setting = GetParam();
    setting.config.lost_after = 300ms;  // the victim hears nothing, and gives up by itself
    std::latch all_have_summed(setting.size);  // a death may fail what others have not finished yet
    std::latch survivors_know(setting.size - 1);
    run_ranks(
        setting.size,
        [&](FakeWorld& world) {
          Runtime runtime(options_in(world, setting.config));
          Runtime::set_thread_current(&runtime);
          expect_sum_works(runtime, "before");
          all_have_summed.arrive_and_wait();
          if (runtime.rank() == victim) {
            world.die();
            survivors_know.wait();  // in shared memory it could still say goodbye
            return;
          }
          Tensor tensor(5);
          const auto is_told = [&](const std::string& name) {
            const std::string text = text_thrown_by<PeerLostError>(
                [&] { allreduce(tensor.view(), tensor.view(), {.name = name}); });
            expect_contains(text, "'" + name + "'");
            expect_contains(text, "rank " + std::to_string(victim) + " died");
          };
          is_told("x");
          is_told("later");
          EXPECT_TRUE(world.is_broken());
          survivors_know.count_down();
        },
        setting.network);
  }
}

// Of the process set that is the world.
constexpr int kDataChannel = 0;
constexpr int kControlChannel = 1;

constexpr std::size_t kSteps = 5;

TEST_P(TimeoutTest, DeathBeforeARuntimeIsMadeIsFoundAsWell) {
  run_ranks(
      GetParam().size,
      [&](FakeWorld& world) {
        if (world.topology().rank == 1) {
          world.die();
          return;
        }
        const std::string text = text_thrown_by<PeerLostError>(
            [&] { Runtime runtime(options_in(world, GetParam().config)); });
        expect_contains(text, "rank 1 died");
        EXPECT_TRUE(world.is_broken());
      },
      GetParam().network);
}

/// What a step gives is right, or it and all later ones are errors.
void run_until_lost(const Runtime& runtime) {
  bool is_lost = false;
  for (std::size_t step = 0; step < kSteps; ++step) {
    Tensor tensor(300);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i, step); });
    const std::string what = "step " + std::to_string(step);
    try {
      allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "x"});
      EXPECT_FALSE(is_lost) << what << " ran after a loss";
      tensor.expect([&](std::size_t i) { return input_sum(runtime.size(), i, step); }, what);
    } catch (const PeerLostError& error) {
      is_lost = true;
      expect_contains(error.what(), "'x'");
    }
  }
}

/// The program of the rank that dies: what it sees afterwards is nobody's business.
void run_until_dead(Runtime& runtime, const std::atomic<bool>& is_dead) {
  std::vector<Tensor> tensors;
  for (std::size_t step = 0; step < kSteps; ++step) {
    tensors.emplace_back(300);
    tensors[step].fill([&](std::size_t i) { return input_value(runtime.rank(), i, step); });
  }
  for (const Tensor& tensor : tensors) {
    Handle handle =
        allreduce_async(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "x"});
    while (!is_dead && !handle.wait_for(1ms)) {
    }
    if (is_dead) break;
  }
  runtime.shutdown();  // before the memory goes
}

void expect_survivors_are_well(int victim, const Fault& death) {
  Setting setting{.size = 3, .network = {.nodes = 3}};
  setting.config.lost_after = 300ms;  // the victim hears nothing, and gives up by itself
  setting.config.segment_bytes = 256;
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        std::atomic<bool> is_dead{false};
        const std::shared_ptr<FakeWorld> inner(std::shared_ptr<void>(), &world);
        const bool is_victim = world.topology().rank == victim;
        FaultWorld faulty(inner, is_victim ? std::vector{death} : std::vector<Fault>{}, [&] {
          world.die();
          is_dead = true;
        });
        try {
          Runtime runtime(options_in(faulty, setting.config));
          Runtime::set_thread_current(&runtime);
          if (is_victim) {
            run_until_dead(runtime, is_dead);
          } else {
            run_until_lost(runtime);
          }
        } catch (const PeerLostError& error) {  // the victim was quicker than this rank's start
          expect_contains(error.what(), "rank " + std::to_string(victim) + " died");
        }
      },
      setting.network);
}

TEST(LossTest, AtAnyDataMessageSurvivorsHaveTheRightValueOrAnError) {
  for (std::uint64_t skip = 0; skip < 40; skip += 3) {
    SCOPED_TRACE("message " + std::to_string(skip));
    const int victim = static_cast<int>(skip % 3);
    expect_survivors_are_well(
        victim, {.kind = Fault::Kind::Die, .channel = kDataChannel, .skip = skip});
  }
}

TEST(LossTest, AtAnyControlMessageSurvivorsHaveTheRightValueOrAnError) {
  for (std::uint64_t skip = 0; skip < 30; skip += 2) {
    SCOPED_TRACE("message " + std::to_string(skip));
    const int victim = static_cast<int>(skip / 2 % 3);
    expect_survivors_are_well(victim, {.kind = Fault::Kind::Die,
                                       .channel = kControlChannel,
                                       .tag = Communicator::kTagCount - 1,
                                       .skip = skip});
  }
}

}  // namespace
}  // namespace kolo::test
