// Mistakes of programs on GPUs, each of which the fake GPUs report.
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gpu_ranks.hpp"

namespace kolo::test::fake_gpu_mistakes_test {

enum class Mistake : std::uint8_t {
  None,
  NoWaitForReady,
  NoWaitForDone,
  ReadyOfAnotherStream,
  StagingReusedEarly,
  GradientFreedEarly,
};

struct MistakeCase {
  Mistake mistake;
  std::string name;
  std::string text;   // of a hazard; empty: there is no hazard
  std::string other;  // another part of that hazard's text
};

void PrintTo(const MistakeCase& mistake, std::ostream* out) { *out << mistake.name; }

constexpr std::size_t kCount = 5;

float gradient_at(int rank, std::size_t step, std::size_t i) {
  return static_cast<float>(static_cast<std::size_t>(rank + 1) * (i + 1) + 10 * step);
}

/// Sums two gradients of the user's stream one after another, through one staging buffer.
class Program {
 public:
  Program(const GpuRank& rank, Mistake mistake) : self_(rank), mistake_(mistake) {}

  void run() {
    for (std::size_t step = 0; step < 2; ++step) produce(step);
    for (std::size_t step = 0; step < 2; ++step) reduce(step);
    if (mistake_ == Mistake::GradientFreedEarly) gradients_[1].free();
    if (mistake_ != Mistake::NoWaitForDone) self_.gpu.wait(compute_.get(), unpacked_.get());
    for (std::size_t step = 0; step < 2; ++step) consume(step);
    self_.hub.synchronize(self_.rank, compute_.get());
    while (!self_.gpu.has_passed(unpacked_.get())) {
    }
  }

  std::vector<float> result(std::size_t step) { return results_[step].get(); }

 private:
  void produce(std::size_t step) {
    DeviceArray<float>& gradient = gradients_[step];
    self_.hub.kernel(self_.rank, compute_.get(),
                     {.name = "produce",
                      .writes = {gradient.range()},
                      .run = [data = gradient.elements(), rank = self_.rank, step] {
                        for (std::size_t i = 0; i < kCount; ++i) {
                          data[i] = gradient_at(rank, step, i);
                        }
                      }});
    const bool is_right = mistake_ != Mistake::ReadyOfAnotherStream;
    self_.gpu.record(ready_[step].get(), is_right ? compute_.get() : idle_.get());
  }

  void reduce(std::size_t step) {
    DeviceArray<float>& gradient = gradients_[step];
    if (mistake_ != Mistake::NoWaitForReady) self_.gpu.wait(network_.get(), ready_[step].get());
    if (mistake_ != Mistake::StagingReusedEarly) {
      self_.gpu.wait(network_.get(), unpacked_.get());
    }
    convert({gradient.data(), staging_.data(), kCount}, DType::Float32, DType::Float16, network_);
    while (!self_.communicator.ready()) {
    }
    self_.communicator.all_reduce(staging_.data(), staging_.data(), kCount, DType::Float16,
                                  ReduceOp::Sum, network_.get());
    self_.gpu.record(reduced_.get(), network_.get());
    self_.gpu.wait(unpacking_.get(), reduced_.get());
    convert({staging_.data(), gradient.data(), kCount}, DType::Float16, DType::Float32, unpacking_);
    self_.gpu.record(unpacked_.get(), unpacking_.get());
  }

  void convert(comm::DeviceRun run, DType from, DType to,
               const std::shared_ptr<CUstream_st>& stream) {
    self_.gpu.convert({&run, 1}, {.from = from, .to = to}, stream.get());
  }

  void consume(std::size_t step) {
    if (gradients_[step].data() == nullptr) return;
    self_.hub.kernel(self_.rank, compute_.get(),
                     {.name = "consume",
                      .reads = {gradients_[step].range()},
                      .writes = {results_[step].range()},
                      .run = [from = gradients_[step].elements(), to = results_[step].elements()] {
                        for (std::size_t i = 0; i < kCount; ++i) to[i] = 2 * from[i];
                      }});
  }

  const GpuRank& self_;
  Mistake mistake_;
  std::shared_ptr<CUstream_st> compute_ = self_.hub.make_stream(self_.rank);
  std::shared_ptr<CUstream_st> idle_ = self_.hub.make_stream(self_.rank);
  std::shared_ptr<CUstream_st> network_ = self_.gpu.make_stream();
  std::shared_ptr<CUstream_st> unpacking_ = self_.gpu.make_stream();
  std::vector<std::shared_ptr<CUevent_st>> ready_{self_.gpu.make_event(), self_.gpu.make_event()};
  std::shared_ptr<CUevent_st> reduced_ = self_.gpu.make_event();
  std::shared_ptr<CUevent_st> unpacked_ = self_.gpu.make_event();
  DeviceArray<std::uint16_t> staging_{self_, kCount};
  std::vector<DeviceArray<float>> gradients_{{self_, kCount}, {self_, kCount}};
  std::vector<DeviceArray<float>> results_{{self_, kCount}, {self_, kCount}};
};

class FakeGpuMistakesTest : public testing::TestWithParam<MistakeCase> {};

TEST_P(FakeGpuMistakesTest, AreFoundOnAnyNumberOfRanks) {
  for (const int size : {1, 2, 3, 4}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    const std::vector<std::string> hazards = run_on_gpus(size, [&](const GpuRank& self) {
      Program program(self, GetParam().mistake);
      program.run();
      if (GetParam().mistake != Mistake::None) return;
      for (std::size_t step = 0; step < 2; ++step) {
        const std::vector<float> result = program.result(step);
        for (std::size_t i = 0; i < kCount; ++i) {
          float sum = 0;
          for (int rank = 0; rank < size; ++rank) sum += gradient_at(rank, step, i);
          EXPECT_EQ(result[i], 2 * sum) << "step " << step << ", element " << i;
        }
      }
    });
    const MistakeCase& expected = GetParam();
    const bool is_expected = expected.text.empty()
                                 ? hazards.empty()
                                 : has_hazard(hazards, expected.text, expected.other);
    EXPECT_TRUE(is_expected) << testing::PrintToString(hazards);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Planted, FakeGpuMistakesTest,
    testing::Values(
        MistakeCase{Mistake::None, "None", "", ""},
        MistakeCase{Mistake::NoWaitForReady, "NoWaitForReady",
                    "write: 'convert float",  // to float16, or that back where it came first, too
                    "what 'produce' (rank 0, stream 1) writes, and does not wait for it: bytes 0x"},
        MistakeCase{Mistake::NoWaitForDone, "NoWaitForDone",
                    "read after write: 'consume' (rank 0, stream 1) reads what ",
                    "'convert float16 to float32' (rank 0, stream 4) writes"},
        MistakeCase{Mistake::ReadyOfAnotherStream, "ReadyOfAnotherStream", "write: 'convert float",
                    "what 'produce' (rank 0, stream 1) writes"},
        MistakeCase{Mistake::StagingReusedEarly, "StagingReusedEarly", "write after read: ",
                    "(rank 0, stream 3) writes what 'convert float16 to float32' (rank 0, stream "
                    "4) reads"},
        MistakeCase{Mistake::GradientFreedEarly, "GradientFreedEarly",
                    "use after free: 'free' (rank 0, host thread 1) frees what ",
                    "'convert float16 to float32' (rank 0, stream 4) writes"}),
    [](const auto& mistake) { return mistake.param.name; });

TEST(FakeGpuOrderTest, OverlappingCommunicatorsInDifferentOrderAreFound) {
  for (const bool is_alike : {true, false}) {
    const auto hazards = run_on_gpus(3, [&](const GpuRank& self) {
      if (self.rank == 2) {
        DeviceArray<float> all(self, {1});
        self.communicator.all_reduce(all.data(), all.data(), 1, DType::Float32, ReduceOp::Sum,
                                     nullptr);
        self.hub.synchronize(self.rank, nullptr);
        return;
      }
      const auto pair = connect(self.world, self.gpu, {0, 1}, 1);
      const auto stream = self.gpu.make_stream();
      DeviceArray<float> all(self, {1});
      DeviceArray<float> two(self, {1});
      const auto reduce_all = [&] {
        self.communicator.all_reduce(all.data(), all.data(), 1, DType::Float32, ReduceOp::Sum,
                                     nullptr);
      };
      if (is_alike || self.rank == 0) reduce_all();
      pair->all_reduce(two.data(), two.data(), 1, DType::Float32, ReduceOp::Sum, stream.get());
      if (!is_alike && self.rank == 1) reduce_all();
      self.hub.synchronize(self.rank, nullptr);
      self.hub.synchronize(self.rank, stream.get());
      EXPECT_EQ(all.get().front(), 3);
      EXPECT_EQ(two.get().front(), 2);
    });
    EXPECT_EQ(has_hazard(hazards, "launch order: "), !is_alike) << testing::PrintToString(hazards);
  }
}

TEST(FakeGpuAgreementTest, CallsThatDoNotFitTogetherAreFound) {
  const auto expect_disagreement = [](const std::vector<std::string>& hazards,
                                      const std::string& text) {
    ASSERT_EQ(hazards.size(), 1u);
    EXPECT_EQ(hazards.front(), "ranks disagree: " + text);
  };
  expect_disagreement(
      hazards_of([](const GpuRank& self, std::byte* input, std::byte* output) {
        const std::size_t count = self.rank == 0 ? 4 : 5;
        self.communicator.all_reduce(input, output, count, DType::Float32, ReduceOp::Sum, nullptr);
      }),
      "'all_reduce of 4 float32 by Sum' on member 0, 'all_reduce of 5 float32 by Sum' on member 1");
  expect_disagreement(
      hazards_of([](const GpuRank& self, std::byte* input, std::byte* output) {
        const DType dtype = self.rank == 0 ? DType::Float32 : DType::Int32;
        self.communicator.all_reduce(input, output, 4, dtype, ReduceOp::Sum, nullptr);
      }),
      "'all_reduce of 4 float32 by Sum' on member 0, 'all_reduce of 4 int32 by Sum' on member 1");
  expect_disagreement(
      hazards_of([](const GpuRank& self, std::byte* input, std::byte* output) {
        if (self.rank == 0) {
          self.communicator.all_reduce(input, output, 4, DType::Float32, ReduceOp::Sum, nullptr);
        } else {
          self.communicator.broadcast(output, 4, DType::Float32, 1, nullptr);
        }
      }),
      "'all_reduce of 4 float32 by Sum' on member 0, 'broadcast of 4 float32 from rank 1' on "
      "member 1");
  expect_disagreement(
      hazards_of([](const GpuRank& self, std::byte* input, std::byte* output) {
        const std::vector<std::size_t> sent{1, self.rank == 0 ? 2u : 1u};
        const std::vector<std::size_t> received{1, 1};
        self.communicator.all_to_all(input, sent, output, received, DType::Float32, nullptr);
      }),
      "'all_to_all of 1 + 2 float32 for 1 + 1' on member 0, 'all_to_all of 1 + 1 float32 for 1 + "
      "1' on member 1");
}

/// Two communicators of the same ranks, each on its own stream. The second one's waits for an event
/// right before the first one's collective, or one that passes before that may start.
std::vector<std::string> hazards_of_two_communicators(bool is_right_before) {
  return run_on_gpus(2,
                     [&](const GpuRank& self) {
                       const auto other = connect(self.world, self.gpu, all_ranks(2), 1);
                       const auto one_stream = self.gpu.make_stream();
                       const auto other_stream = self.gpu.make_stream();
                       const auto launch = self.gpu.make_event();
                       const auto ready = self.gpu.make_event();
                       DeviceArray<float> first(self, {1.0F});
                       DeviceArray<float> second(self, {1.0F});
                       if (!is_right_before) self.gpu.record(launch.get(), one_stream.get());
                       self.gpu.record(ready.get(), nullptr);
                       self.gpu.wait(one_stream.get(), ready.get());
                       if (is_right_before) self.gpu.record(launch.get(), one_stream.get());
                       self.communicator.all_reduce(first.data(), first.data(), 1, DType::Float32,
                                                    ReduceOp::Sum, one_stream.get());
                       self.gpu.wait(other_stream.get(), launch.get());
                       other->all_reduce(second.data(), second.data(), 1, DType::Float32,
                                         ReduceOp::Sum, other_stream.get());
                       self.hub.synchronize(self.rank, one_stream.get());
                       self.hub.synchronize(self.rank, other_stream.get());
                     },
                     {.gpus_per_rank = 1});
}

TEST(FakeGpuMistakesTest, CollectivesOfTwoCommunicatorsNeedAnOrderOnTheDevice) {
  EXPECT_TRUE(hazards_of_two_communicators(true).empty());
  const std::vector<std::string> hazards = hazards_of_two_communicators(false);
  ASSERT_FALSE(hazards.empty());
  EXPECT_NE(hazards.front().find("device order: "), std::string::npos) << hazards.front();
}

}  // namespace kolo::test::fake_gpu_mistakes_test
