#include "support/gpu/fake_gpu.hpp"

#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/gpu_ranks.hpp"
#include "kolo/error.hpp"
#include "support/gpu/scalar.hpp"

namespace kolo::test::fake_gpu_test {

std::string backend_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const BackendError& error) {
    return error.what();
  }
  return "none";
}

TEST(FakeGpuFaultsTest, AbortDropsPendingWorkAndTheStreamContinues) {
  expect_no_hazards([](const GpuRank& self) {
    DeviceArray<float> array(self, {1});
    const auto reduce = [&] {
      self.communicator.all_reduce(array.data(), array.data(), 1, DType::Float32, ReduceOp::Sum,
                                   nullptr);
    };
    if (self.rank != 0) reduce();  // rank 0 never calls it
    self.gpu.fill(array.data(), 1, DType::Float32, scalar_of(DType::Float32, 5), nullptr);
    self.communicator.abort("rank 3 died");
    self.communicator.abort("another reason");
    self.hub.synchronize(self.rank, nullptr);
    EXPECT_EQ(array.get(), std::vector<float>{5});
    const std::string reason = "fake GPU communicator has failed: rank 3 died";
    EXPECT_EQ(backend_error_of(reduce), reason);
    EXPECT_EQ(backend_error_of([&] { self.communicator.ready(); }), reason);
  });
}

TEST(FakeGpuFaultsTest, FailedOperationIsReportedOnItsRankAndHangsOnTheOthers) {
  expect_no_hazards([](const GpuRank& self) {
    if (self.rank == 1) self.hub.fail_collective(1, 1, "the cable is out");
    DeviceArray<float> array(self, {1});
    const auto first = self.gpu.make_event();
    const auto second = self.gpu.make_event();
    for (const auto& event : {first, second}) {
      self.communicator.all_reduce(array.data(), array.data(), 1, DType::Float32, ReduceOp::Sum,
                                   nullptr);
      self.gpu.record(event.get(), nullptr);
    }
    while (!self.gpu.has_passed(first.get())) {
    }
    for (int look = 0; look < 100; ++look) EXPECT_FALSE(self.gpu.has_passed(second.get()));
    if (self.rank == 1) {
      EXPECT_EQ(backend_error_of([&] { self.communicator.ready(); }),
                "fake GPU communicator has failed: the cable is out");
    } else {
      EXPECT_TRUE(self.communicator.ready());
    }
    self.communicator.abort("rank 1 said so");
    self.hub.synchronize(self.rank, nullptr);
    EXPECT_EQ(array.get(), std::vector<float>{static_cast<float>(self.size)});
  });
}

TEST(FakeGpuFaultsTest, RankThatNeverArrivesBlocksAll) {
  expect_no_hazards([](const GpuRank& self) {
    if (self.rank == 0) self.hub.lose_collective(0, 0);
    const auto event = self.gpu.make_event();
    DeviceArray<float> array(self, {1});
    self.communicator.all_reduce(array.data(), array.data(), 1, DType::Float32, ReduceOp::Sum,
                                 nullptr);
    self.gpu.record(event.get(), nullptr);
    for (int look = 0; look < 100; ++look) EXPECT_FALSE(self.gpu.has_passed(event.get()));
    EXPECT_TRUE(self.communicator.ready());
    self.communicator.abort("it takes too long");
    while (!self.gpu.has_passed(event.get())) {
    }
  });
}

TEST(FakeGpuTest, ConvertsAsTheCpuDoes) {
  expect_no_hazards([](const GpuRank& self) {
    DeviceArray<float> floats(self, {1.5F, -2.25F, 1e6F});
    DeviceArray<std::uint16_t> halves(self, 3);
    DeviceArray<std::int64_t> integers(self, {7, -7, 1000});
    DeviceArray<std::int32_t> quotients(self, 3);
    DeviceArray<std::uint8_t> bools(self, {0, 1, 1});
    const auto convert = [&](const auto& from, const auto& to, comm::DeviceConversion conversion) {
      const std::vector<comm::DeviceRun> runs{
          {from.data(), to.data(), 1},
          {from.data() + size_of(conversion.from), to.data() + size_of(conversion.to), 2}};
      self.gpu.convert(runs, conversion, nullptr);
    };
    convert(floats, halves, {.to = DType::Float16, .factor = 2});
    convert(halves, floats, {.from = DType::Float16});
    convert(integers, quotients, {.from = DType::Int64, .to = DType::Int32, .divisor = 2});
    convert(integers, integers, {.from = DType::Int64, .to = DType::Int64, .factor = 0.5});
    convert(integers, bools, {.from = DType::Int64, .to = DType::Bool});
    self.hub.synchronize(self.rank, nullptr);
    EXPECT_EQ(floats.get(), (std::vector<float>{3, -4.5F, std::numeric_limits<float>::infinity()}));
    EXPECT_EQ(quotients.get(), (std::vector<std::int32_t>{3, -3, 500}));
    EXPECT_EQ(integers.get(), (std::vector<std::int64_t>{3, -3, 500}));
    EXPECT_EQ(bools.get(), (std::vector<std::uint8_t>{1, 1, 1}));
    EXPECT_THROW(convert(floats, integers, {.to = DType::Int64}), InvalidArgument);
    EXPECT_THROW(convert(floats, floats, {.divisor = 2}), InvalidArgument);
  });
}

TEST(FakeGpuTest, AddsUpVectors) {
  expect_no_hazards([](const GpuRank& self) {
    DeviceArray<float> floats(self, {1, 2, -7, 3, 5, -7});  // (1, 2) and (3, 5), with gaps
    DeviceArray<float> sums(self, 2);
    const comm::DeviceVectors vectors{floats.data(), DType::Float32, 2, 3, 2};
    self.gpu.add_up(vectors, {.before = 0.5, .after = 4}, sums.data(), nullptr);
    self.hub.synchronize(self.rank, nullptr);
    EXPECT_EQ(sums.get(), (std::vector<float>{8, 14}));
    EXPECT_THROW(self.gpu.add_up({floats.data(), DType::Int32, 2, 3, 2}, {}, sums.data(), nullptr),
                 InvalidArgument);
  });
}

TEST(FakeGpuTest, WorkRunsOnlyWhenARankPolls) {
  // Alone: whatever rank looks advances the work of all.
  const auto hazards = run_on_gpus(1, [](const GpuRank& self) {
    bool is_done = false;
    DeviceArray<float> array(self, {1});
    const auto event = self.gpu.make_event();
    EXPECT_TRUE(self.gpu.has_passed(event.get())) << "was never recorded";
    self.hub.kernel(0, nullptr,
                    {.name = "set", .writes = {array.range()}, .run = [&] { is_done = true; }});
    self.gpu.record(event.get(), nullptr);
    EXPECT_FALSE(is_done);
    while (!self.gpu.has_passed(event.get())) {
    }
    EXPECT_TRUE(is_done);
  });
  EXPECT_EQ(hazards, std::vector<std::string>());
}

/// The hazards of a kernel that is launched after `ask` has found another stream's kernel finished.
template <class Ask>
std::vector<std::string> hazards_after_asking(Ask&& ask) {
  return run_on_gpus(1, [&](const GpuRank& self) {
    const auto stream = self.gpu.make_stream();
    const auto event = self.gpu.make_event();
    DeviceArray<float> array(self, {1});
    self.hub.kernel(0, stream.get(), {.name = "produce", .writes = {array.range()}});
    self.gpu.record(event.get(), stream.get());
    while (!ask(self, event.get())) {
    }
    self.hub.kernel(0, nullptr, {.name = "consume", .reads = {array.range()}});
    self.hub.synchronize(0, nullptr);
  });
}

TEST(FakeGpuTest, WhatAThreadLearnsOrdersItsOwnLaunchesAlone) {
  const auto ask = [](const GpuRank& self, comm::DeviceEvent event) {
    return self.gpu.has_passed(event);
  };
  EXPECT_EQ(hazards_after_asking(ask), std::vector<std::string>());
  const auto hazards = hazards_after_asking([&](const GpuRank& self, comm::DeviceEvent event) {
    return std::async(std::launch::async, ask, self, event).get();
  });
  ASSERT_EQ(hazards.size(), 1U);
  EXPECT_THAT(hazards[0], testing::HasSubstr("read after write: 'consume'"));
}

TEST(FakeGpuTest, StreamsAndEventsAreKnownWhileTheyLive) {
  expect_no_hazards([](const GpuRank& self) {
    auto stream = self.gpu.make_stream();
    auto event = self.gpu.make_event();
    const auto* const given_up_stream = stream.get();
    const auto* const given_up_event = event.get();
    DeviceArray<float> array(self, 1);
    self.gpu.fill(array.data(), 1, DType::Float32, scalar_of(DType::Float32, 5), stream.get());
    self.gpu.record(event.get(), stream.get());
    self.gpu.wait(nullptr, event.get());
    stream.reset();
    event.reset();
    self.hub.synchronize(self.rank, nullptr);
    EXPECT_EQ(array.get(), std::vector<float>{5}) << "done all the same";
    EXPECT_THROW(self.hub.synchronize(self.rank, const_cast<CUstream_st*>(given_up_stream)),
                 BackendError);
    EXPECT_THROW(self.gpu.has_passed(const_cast<CUevent_st*>(given_up_event)), BackendError);
  });
}

/// The hazards of memory that is allocated and freed on the default stream, and used on another
/// stream in between.
template <class Between>
std::vector<std::string> hazards_with_stream_ordered_memory(Between&& between) {
  return run_on_gpus(1, [&](const GpuRank& self) {
    constexpr std::size_t kBytes = 8;
    const auto other = self.gpu.make_stream();
    const auto event = self.gpu.make_event();
    std::byte* const memory = self.hub.allocate_on(0, nullptr, kBytes);
    self.gpu.record(event.get(), nullptr);
    self.gpu.wait(other.get(), event.get());
    self.hub.kernel(0, other.get(), {.name = "use", .writes = {ByteRange(memory, kBytes)}});
    std::vector<comm::DeviceStream> streams{nullptr};
    between(self, other.get(), streams);
    self.hub.free_on(0, streams, memory);
  });
}

TEST(FakeGpuTest, StreamOrderedMemoryIsFreedAfterTheStreamsThatUseIt) {
  const auto nothing = [](auto&&...) {};
  ASSERT_EQ(hazards_with_stream_ordered_memory(nothing).size(), 1U);
  EXPECT_NE(hazards_with_stream_ordered_memory(nothing).front().find("'free' (rank 0, default"),
            std::string::npos);
  const auto name_stream = [](const GpuRank&, comm::DeviceStream other, auto& streams) {
    streams.push_back(other);
  };
  EXPECT_EQ(hazards_with_stream_ordered_memory(name_stream), std::vector<std::string>());
  const auto synchronize = [](const GpuRank& self, comm::DeviceStream, auto&&) {
    self.hub.synchronize_device(0);
  };
  EXPECT_EQ(hazards_with_stream_ordered_memory(synchronize), std::vector<std::string>());
}

TEST(FakeGpuTest, DrainingAStreamAddsNoOrder) {
  const auto drain = [](const GpuRank& self, comm::DeviceStream other, auto&&) {
    self.hub.drain(0, other);
  };
  EXPECT_EQ(hazards_with_stream_ordered_memory(drain).size(), 1U);
}

TEST(FakeWorldGpusTest, AProcessSeesTheGpusOfItsNode) {
  run_ranks(4,
            [](FakeWorld& world) {
              EXPECT_EQ(world.gpus()->count(), 2 * 2);
              EXPECT_EQ(world.gpus()->open(3)->index(), 3);
              EXPECT_THROW(world.gpus()->open(4), BackendError);
            },
            {.nodes = 2, .gpus_per_rank = 2});
  run_ranks(1, [](FakeWorld& world) {
    EXPECT_EQ(world.gpus(), nullptr);
    EXPECT_EQ(world.hub(), nullptr);
  });
}

TEST(FakeGpuTest, RefusesWhatNcclCannotReduce) {
  expect_no_hazards([](const GpuRank& self) {
    DeviceArray<float> array(self, 1);
    const auto reduce = [&](DType dtype, ReduceOp op) {
      self.communicator.all_reduce(array.data(), array.data(), 1, dtype, op, nullptr);
    };
    EXPECT_THROW(reduce(DType::Int16, ReduceOp::Sum), InvalidArgument);
    EXPECT_THROW(reduce(DType::Bool, ReduceOp::Sum), InvalidArgument);
    EXPECT_THROW(reduce(DType::Float32, ReduceOp::Average), InvalidArgument);
    const std::vector<std::size_t> counts{1};
    EXPECT_THROW(
        self.communicator.all_gather(array.data(), array.data(), counts, DType::Float32, nullptr),
        InvalidArgument);
  });
}

}  // namespace kolo::test::fake_gpu_test
