// ThreadCommunicator against closed forms, with values that differ between ranks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gpu_ranks.hpp"
#include "gpu/thread_worlds.hpp"
#include "kolo/error.hpp"
#include "runtime/values.hpp"

namespace kolo::test::thread_communicator_test {

using Counts = std::vector<std::size_t>;

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

/// 2, 0, 4, 0 … elements per rank, or 3 on each.
Counts counts_of(int size, bool are_even) {
  Counts counts;
  for (int rank = 0; rank < size; ++rank) {
    counts.push_back(are_even ? 3 : static_cast<std::size_t>(rank % 2 == 0 ? rank + 2 : 0));
  }
  return counts;
}

std::size_t sum_of_first(const Counts& counts, std::size_t ranks) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(ranks),
                         std::size_t{0});
}

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.view().data); }

TEST_P(ThreadCommunicatorTest, AllReduceKnowsEveryTypeAndOperation) {
  run([&](const Rank& self) {
    constexpr std::size_t kCount = 1003;
    for (int index = 0; index < kDTypeCount; ++index) {
      const auto dtype = static_cast<DType>(index);
      if (dtype == DType::Int16 || is_complex(dtype)) continue;
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max}) {
        const bool is_order = op == ReduceOp::Min || op == ReduceOp::Max;
        if (dtype == DType::Bool && !is_order) continue;
        // 1 on rank i % size, 0 or 2 on the others: exact in every type.
        const double others = dtype != DType::Bool && op == ReduceOp::Product && size() < 7 ? 2 : 0;
        const auto value = [&](int rank, std::size_t i) {
          return static_cast<int>(i % static_cast<std::size_t>(size())) == rank ? 1.0 : others;
        };
        double expected = value(0, 0);
        for (int rank = 1; rank < size(); ++rank) {
          const double next = value(rank, 0);
          if (op == ReduceOp::Sum) expected += next;
          if (op == ReduceOp::Product) expected *= next;
          if (op == ReduceOp::Min) expected = std::min(expected, next);
          if (op == ReduceOp::Max) expected = std::max(expected, next);
        }
        Tensor input(kCount, dtype);
        Tensor output(kCount, dtype);
        input.fill([&](std::size_t i) { return value(self.rank(), i); });
        self.begin();
        for (const Tensor* const result : {&output, &input}) {
          self.communicator().all_reduce(input.view().data, result->view().data, kCount, dtype,
                                         {.op = op}, self.stream());
          self.finish();
        }
        const std::string what = std::string(name_of(dtype)) + " by " + std::string(name_of(op));
        output.expect([&](std::size_t) { return expected; }, what);
        input.expect([&](std::size_t) { return expected; }, what + " in place");
      }
    }
  });
}

TEST_P(ThreadCommunicatorTest, AFactorComesBeforeTheSum) {
  run([&](const Rank& self) {
    constexpr std::size_t kCount = 100'003;
    Tensor tensor = filled(self.rank(), kCount, DType::Float32);
    self.begin();
    self.communicator().all_reduce(tensor.view().data, tensor.view().data, kCount, DType::Float32,
                                   {.factor = 0.25}, self.stream());
    self.finish();
    tensor.expect(
        [&](std::size_t i) {
          double sum = 0;
          for (int rank = 0; rank < size(); ++rank) sum += 0.25 * value_of(rank, i);
          return sum;
        },
        "sum of quarters");
  });
}

TEST_P(ThreadCommunicatorTest, ReduceScatter) {
  run([&](const Rank& self) {
    for (const DType dtype : {DType::Int32, DType::Float32}) {
      for (const bool is_even : {true, false}) {
        for (const bool is_in_place : {true, false}) {
          const Counts counts = counts_of(size(), is_even);
          const std::size_t before = sum_of_first(counts, self.self());
          const std::size_t own = counts[self.self()];
          Tensor input = filled(self.rank(), sum_of_first(counts, counts.size()), dtype);
          Tensor output(static_cast<std::int64_t>(own), dtype);
          self.begin();
          std::byte* const place =
              is_in_place ? bytes_of(input) + before * size_of(dtype) : bytes_of(output);
          self.communicator().reduce_scatter(input.view().data, place, counts, dtype, {},
                                             self.stream());
          self.finish();
          const auto sum = [&](std::size_t i) {
            double all = 0;
            for (int rank = 0; rank < size(); ++rank) all += value_of(rank, i);
            return all;
          };
          input.expect(
              [&](std::size_t i) {
                const bool is_result = is_in_place && i >= before && i < before + own;
                return is_result ? sum(i) : value_of(self.rank(), i);
              },
              "input");
          if (is_in_place) continue;
          output.expect([&](std::size_t i) { return sum(before + i); }, "output");
        }
      }
    }
  });
}

TEST_P(ThreadCommunicatorTest, AllGather) {
  run([&](const Rank& self) {
    for (const bool is_even : {true, false}) {
      for (const bool is_in_place : {true, false}) {
        const Counts counts = counts_of(size(), is_even);
        const std::size_t before = sum_of_first(counts, self.self());
        const Tensor input = filled(self.rank(), counts[self.self()]);
        Tensor output(static_cast<std::int64_t>(sum_of_first(counts, counts.size())), DType::Int32);
        output.fill([&](std::size_t i) {
          return i < before || !is_in_place ? -1.0 : value_of(self.rank(), i - before);
        });
        self.begin();
        const std::byte* const from = is_in_place ? bytes_of(output) + before * 4 : bytes_of(input);
        self.communicator().all_gather(from, output.view().data, counts, DType::Int32,
                                       self.stream());
        self.finish();
        output.expect(
            [&](std::size_t i) {
              int rank = 0;
              while (sum_of_first(counts, static_cast<std::size_t>(rank) + 1) <= i) ++rank;
              return value_of(rank, i - sum_of_first(counts, static_cast<std::size_t>(rank)));
            },
            "gathered");
      }
    }
  });
}

TEST_P(ThreadCommunicatorTest, BroadcastFromEveryRank) {
  run([&](const Rank& self) {
    for (int root = 0; root < size(); ++root) {
      Tensor tensor = filled(self.rank(), 2003, DType::Int64);
      self.begin();
      self.communicator().broadcast(tensor.view().data, 2003, DType::Int64, root, self.stream());
      self.finish();
      tensor.expect([&](std::size_t i) { return value_of(root, i); }, "broadcast");
    }
  });
}

/// Rank s sends (s + r) % 3 elements to rank r.
TEST_P(ThreadCommunicatorTest, AllToAll) {
  run([&](const Rank& self) {
    Counts counts;  // symmetric
    for (std::size_t peer = 0; peer < static_cast<std::size_t>(size()); ++peer) {
      counts.push_back((self.self() + peer) % 3);
    }
    const std::size_t total = sum_of_first(counts, counts.size());
    Tensor input(static_cast<std::int64_t>(total), DType::Int32);
    Tensor output(static_cast<std::int64_t>(total), DType::Int32);
    const auto value = [](std::size_t from, std::size_t to) {
      return static_cast<double>(100 * from + to);
    };
    const auto peer_of = [&](std::size_t i) {
      std::size_t peer = 0;
      while (sum_of_first(counts, peer + 1) <= i) ++peer;
      return peer;
    };
    input.fill([&](std::size_t i) { return value(self.self(), peer_of(i)); });
    self.begin();
    self.communicator().all_to_all(input.view().data, counts, output.view().data, counts,
                                   DType::Int32, self.stream());
    self.finish();
    output.expect([&](std::size_t i) { return value(peer_of(i), self.self()); }, "exchanged");
  });
}

TEST_P(ThreadCommunicatorTest, GroupsAreOneLaunch) {
  run([&](const Rank& self) {
    Tensor floats = filled(self.rank(), 257, DType::Float32);
    Tensor integers = filled(self.rank(), 3);
    const Counts counts(static_cast<std::size_t>(size()), 3);
    Tensor gathered(3 * size(), DType::Int32);
    self.begin();
    comm::DeviceGroup group(self.communicator());
    self.communicator().all_reduce(floats.view().data, floats.view().data, 257, DType::Float32, {},
                                   self.stream());
    self.communicator().all_gather(integers.view().data, gathered.view().data, counts, DType::Int32,
                                   self.stream());
    group.end();
    self.finish();
    floats.expect(
        [&](std::size_t i) {
          double sum = 0;
          for (int rank = 0; rank < size(); ++rank) sum += value_of(rank, i);
          return sum;
        },
        "sum");
    gathered.expect([](std::size_t i) { return value_of(static_cast<int>(i / 3), i % 3); },
                    "gathered");
  });
}

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
      self.gpu().fill(bytes_of(memory), count, DType::Float32,
                      comm::scalar_of(DType::Float32, value), self.stream());
    };
    for (int step = 0; step < kSteps; ++step) {
      fill(self.rank() + step);
      self.communicator().all_reduce(memory.view().data, memory.view().data, count, DType::Float32,
                                     {}, self.stream());
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
      self.communicator().all_reduce(one.view().data, one.view().data, 1003, DType::Float32, {},
                                     self.stream());
    };
    if (self.rank() % 2 == 0) first();
    other->all_reduce(two.view().data, two.view().data, 1003, DType::Float32, {}, stream.get());
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
      self.communicator().all_reduce(tensor.view().data, tensor.view().data, 5, DType::Float32, {},
                                     self.stream());
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
                                   {}, self.stream());
    const std::string text = text_thrown_by<BackendError>([&] {
      while (!self.communicator().ready()) std::this_thread::yield();
    });
    expect_contains(text, "ranks disagree");
    all_know.arrive_and_wait();  // nobody aborts before
  });
}

}  // namespace kolo::test::thread_communicator_test
