// ThreadCommunicator: the order of its work, and its errors. What it computes, the suites that run
// beside this file check.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gpu_ranks.hpp"
#include "gpu/thread_worlds.hpp"
#include "kolo/error.hpp"
#include "runtime/values.hpp"
#include "support/gpu/scalar.hpp"

namespace kolo::test::thread_communicator_test {

/// For all tests of the program.
[[maybe_unused]] const bool is_set = [] {
  on_other_gpus = on_one_gpu;
  return true;
}();

/// One rank, with a stream that the default stream does not wait for.
class Rank {
 public:
  explicit Rank(FakeWorld& world)
      : world_(world),
        gpu_(world.gpus()->open(tensor_place->device().index)),
        communicator_(connect(world, *gpu_, all_ranks(size()), 0)),
        stream_(gpu_->make_stream()),
        event_(gpu_->make_event()) {}

  int rank() const { return world_.topology().rank; }
  int size() const { return world_.topology().size; }
  std::size_t self() const { return static_cast<std::size_t>(rank()); }
  FakeWorld& world() const { return world_; }
  comm::Gpu& gpu() const { return *gpu_; }
  comm::DeviceCommunicator& communicator() const { return *communicator_; }
  comm::DeviceStream stream() const { return stream_.get(); }

  /// The stream follows what the default stream has done so far, as uploads.
  void begin() const { follow(nullptr, stream()); }
  /// Waits until the communicator has launched; the default stream follows.
  void finish() const { finish(*communicator_); }
  void finish(comm::DeviceCommunicator& communicator) const {
    while (!communicator.ready()) std::this_thread::yield();
    follow(stream(), nullptr);
  }

 private:
  void follow(comm::DeviceStream first, comm::DeviceStream then) const {
    gpu_->record(event_.get(), first);
    gpu_->wait(then, event_.get());
  }

  FakeWorld& world_;
  std::shared_ptr<comm::Gpu> gpu_;
  std::unique_ptr<comm::DeviceCommunicator> communicator_;
  std::shared_ptr<CUstream_st> stream_;
  std::shared_ptr<CUevent_st> event_;
};

class ThreadCommunicatorTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  void run(const std::function<void(const Rank&)>& body) const {
    const Setting setting = on_one_gpu({.size = size()});
    std::shared_ptr<FakeGpuHub> hub;
    run_ranks(
        setting.size,
        [&](FakeWorld& world) {
          FakeTensorPlace fake(world.hub(), world.topology().rank, world.topology().local_rank);
          tensor_place = setting.place != nullptr ? setting.place.get() : &fake;
          if (world.topology().rank == 0) hub = world.hub();
          body(Rank(world));
          tensor_place = nullptr;
        },
        setting.network);
    if (hub == nullptr) return;
    for (const std::string& hazard : hub->hazards()) ADD_FAILURE() << hazard;
  }
};
INSTANTIATE_TEST_SUITE_P(, ThreadCommunicatorTest, testing::Values(1, 2, 3, 4, 8));

double value_of(int rank, std::size_t i) { return 10.0 * rank + static_cast<double>(i % 10); }

/// A tensor with value_of(rank, i), or another formula.
Tensor filled(int rank, std::size_t count, DType dtype = DType::Int32) {
  Tensor tensor(static_cast<std::int64_t>(count), dtype);
  tensor.fill([&](std::size_t i) { return value_of(rank, i); });
  return tensor;
}

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.view().data); }

/// The stream writes the inputs right before and right after each launch, and no host waits for it.
TEST_P(ThreadCommunicatorTest, LaunchesAreOrderedByStreamsAlone) {
  run([&](const Rank& self) {
    const bool is_real = self.world().hub() == nullptr;
    const std::size_t count = is_real ? 4'000'003 : 20'003;
    constexpr int kSteps = 20;
    const double n = size();
    Tensor memory(static_cast<std::int64_t>(count));
    Tensor sums(kSteps * 7);  // seven elements of each step's result
    self.begin();
    const auto fill = [&](double value) {
      self.gpu().fill(bytes_of(memory), count, DType::Float32, scalar_of(DType::Float32, value),
                      self.stream());
    };
    for (int step = 0; step < kSteps; ++step) {
      fill(self.rank() + step);
      self.communicator().all_reduce(memory.view().data, memory.view().data, count, DType::Float32,
                                     ReduceOp::Sum, self.stream());
      while (!self.communicator().ready()) std::this_thread::yield();
      std::vector<comm::DeviceRun> runs;
      for (std::size_t i = 0; i < 7; ++i) {
        runs.push_back({bytes_of(memory) + i * (count - 1) / 6 * 4,
                        bytes_of(sums) + (static_cast<std::size_t>(step) * 7 + i) * 4, 1});
      }
      self.gpu().convert(runs, {}, self.stream());
      fill(-1000.0);
    }
    self.finish();
    sums.expect([&](std::size_t i) { return n * (n - 1) / 2 + n * static_cast<double>(i / 7); },
                "sums");
  });
}

/// Each rank uses the two in another order, which would be a deadlock if collectives occupied the
/// GPU.
TEST_P(ThreadCommunicatorTest, CommunicatorsDoNotHoldUpEachOther) {
  run([&](const Rank& self) {
    const auto other = connect(self.world(), self.gpu(), all_ranks(size()), 1);
    const auto stream = self.gpu().make_stream();
    Tensor one = filled(self.rank(), 1003, DType::Float32);
    Tensor two = filled(self.rank() + 1, 1003, DType::Float32);
    self.begin();
    const auto event = self.gpu().make_event();
    self.gpu().record(event.get(), nullptr);
    self.gpu().wait(stream.get(), event.get());
    const auto first = [&] {
      self.communicator().all_reduce(one.view().data, one.view().data, 1003, DType::Float32,
                                     ReduceOp::Sum, self.stream());
    };
    if (self.rank() % 2 == 0) first();
    other->all_reduce(two.view().data, two.view().data, 1003, DType::Float32, ReduceOp::Sum,
                      stream.get());
    if (self.rank() % 2 == 1) first();
    bool is_first_ready = false;
    bool is_other_ready = false;
    while (!is_first_ready || !is_other_ready) {
      is_first_ready = is_first_ready || self.communicator().ready();
      is_other_ready = is_other_ready || other->ready();
    }
    self.finish();
    self.gpu().record(event.get(), stream.get());
    self.gpu().wait(nullptr, event.get());
    const auto sum = [&](std::size_t i) {
      double all = 0;
      for (int rank = 0; rank < size(); ++rank) all += value_of(rank, i);
      return all;
    };
    one.expect(sum, "one");
    two.expect([&](std::size_t i) { return sum(i) + 10 * size(); }, "two");
  });
}

TEST_P(ThreadCommunicatorTest, AfterAnAbortEveryCallGivesTheReason) {
  run([&](const Rank& self) {
    Tensor tensor = filled(self.rank(), 5, DType::Float32);
    self.begin();
    const auto reduce = [&] {
      self.communicator().all_reduce(tensor.view().data, tensor.view().data, 5, DType::Float32,
                                     ReduceOp::Sum, self.stream());
    };
    if (self.rank() > 0) {
      reduce();
      EXPECT_FALSE(self.communicator().ready());  // rank 0 never calls
    }
    self.communicator().abort("on purpose");
    self.communicator().abort("another reason");
    expect_contains(text_thrown_by<BackendError>([&] { self.communicator().ready(); }),
                    "on purpose");
    expect_contains(text_thrown_by<BackendError>(reduce), "on purpose");
    tensor.expect([&](std::size_t i) { return value_of(self.rank(), i); }, "as before");
  });
}

TEST_P(ThreadCommunicatorTest, RanksThatDisagreeAllFail) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  std::latch all_know(size());
  run([&](const Rank& self) {
    Tensor tensor = filled(self.rank(), 9, DType::Float32);
    self.begin();
    const std::size_t count = self.rank() == 0 ? 8 : 9;
    self.communicator().all_reduce(tensor.view().data, tensor.view().data, count, DType::Float32,
                                   ReduceOp::Sum, self.stream());
    const std::string text = text_thrown_by<BackendError>([&] {
      while (!self.communicator().ready()) std::this_thread::yield();
    });
    expect_contains(text, "ranks disagree");
    all_know.arrive_and_wait();  // nobody aborts before
  });
}

}  // namespace kolo::test::thread_communicator_test
