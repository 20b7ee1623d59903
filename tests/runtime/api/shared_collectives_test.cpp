// Collectives on memory that the ranks share: values and algorithms.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "kolo/tensor_view.hpp"
#include "ops/algorithms.hpp"
#include "runtime/reduce_values.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/shared_buffers.hpp"
#include "runtime/values.hpp"

namespace kolo::test::shared_collectives_test {

constexpr std::size_t kBytes = 65536;
constexpr std::size_t kOffset = 64;

/// Elements of one type in a shared buffer, with neighbours that must not change.
class Elements {
 public:
  Elements(DType dtype, std::size_t count)
      : dtype_(dtype), count_(count), buffer_(kBytes, {.name = "memory"}) {
    std::fill_n(buffer_.data(), kBytes, kPaddingByte);
  }

  const SharedBuffer& buffer() const { return buffer_; }
  std::byte* data() const { return buffer_.data() + kOffset; }
  TensorView view(std::size_t begin, std::vector<std::int64_t> shape) const {
    return {data() + begin * size_of(dtype_), dtype_, std::move(shape)};
  }

  template <class Formula>
  void fill(Formula formula) {
    for (std::size_t i = 0; i < count_; ++i) set_value(dtype_, data(), i, formula(i));
  }
  template <class Formula>
  void expect(Formula formula, const std::string& what, double tolerance = 0) const {
    for (std::size_t i = 0; i < count_; ++i) {
      ASSERT_NEAR(value_at(dtype_, data(), i), formula(i), tolerance)
          << what << ", element " << i << " of " << count_;
    }
    const std::size_t end = kOffset + count_ * size_of(dtype_);
    for (std::size_t i = 0; i < kBytes; ++i) {
      if (i >= kOffset && i < end) continue;
      ASSERT_EQ(buffer_.data()[i], kPaddingByte)
          << what << ", byte " << i << " beside the elements";
    }
  }

 private:
  static constexpr std::byte kPaddingByte{0x3C};

  DType dtype_;
  std::size_t count_;
  SharedBuffer buffer_;
};

class SharedCollectivesTest : public SharedBuffersTest {};

INSTANTIATE_TEST_SUITE_P(, SharedCollectivesTest, testing::ValuesIn(shared_buffer_settings()),
                         name_of_setting);

struct Scattering {
  DType dtype;
  AllreduceOptions options;
};

std::vector<Scattering> scatterings() {
  return {
      {DType::Float32, {.op = ReduceOp::Sum, .name = "sum"}},
      {DType::Int8, {.op = ReduceOp::Max, .name = "max"}},
      {DType::BFloat16, {.op = ReduceOp::Average, .name = "mean"}},
      {DType::Int32, {.op = ReduceOp::Average, .name = "whole"}},  // on a wider copy
      {DType::Float64, {.op = ReduceOp::Product, .name = "product"}},
      {DType::Float32, {.op = ReduceOp::Sum, .compression = Compression::fp16(), .name = "wire"}}};
}

TEST_P(SharedCollectivesTest, ReduceScatter_IntoItsRowsOrElsewhere) {
  run([&](Runtime& runtime) {
    const int rank = runtime.rank();
    const std::int64_t rows = 2 * size() + 1;
    const std::size_t own_rows = static_cast<std::size_t>(scattered_rows(rows, size(), rank));
    std::size_t begin = 0;
    for (int peer = 0; peer < rank; ++peer) {
      begin += 7 * static_cast<std::size_t>(scattered_rows(rows, size(), peer));
    }
    for (const auto& [dtype, options] : scatterings()) {
      const auto input = [&, dtype = dtype, op = options.op](std::size_t i) {
        return reduce_input(dtype, op, rank, i);
      };
      const auto result = [&, dtype = dtype, op = options.op](std::size_t i) {
        return reduce_expected(dtype, op, size(), i);
      };
      Elements elements(dtype, static_cast<std::size_t>(7 * rows));
      Tensor apart(dtype, {static_cast<std::int64_t>(own_rows), 7});
      elements.fill(input);
      reduce_scatter_async(elements.buffer(), kOffset, {rows, 7}, apart.view(), options).wait();
      expect_reduced(
          apart, options.op, [&](std::size_t i) { return result(begin + i); },
          options.name + ", elsewhere");
      elements.expect(input, options.name + ", input");

      reduce_scatter(elements.buffer(), kOffset, {rows, 7},
                     elements.view(begin, apart.view().shape), options);
      elements.expect(
          [&](std::size_t i) {
            const bool is_own = i >= begin && i < begin + 7 * own_rows;
            return is_own ? result(i) : input(i);
          },
          options.name + ", in place", 11 * reduce_tolerance(dtype, options.op));
    }
  });
}

TEST_P(SharedCollectivesTest, AllGather_UnevenCountsInPlace) {
  run([&](Runtime& runtime) {
    std::vector<std::int64_t> counts;
    std::vector<int> owners;  // by element
    for (int rank = 0; rank < size(); ++rank) {
      counts.push_back(rank == 1 ? 0 : 300 + 37 * rank);
      owners.insert(owners.end(), static_cast<std::size_t>(counts.back()), rank);
    }
    for (const DType dtype : {DType::Int16, DType::Float64}) {
      Elements elements(dtype, owners.size());
      for (int round = 0; round < 3; ++round) {
        const auto value = [&](std::size_t i) {
          return 1000.0 * owners[i] + static_cast<double>(i % 97) + 100 * round;
        };
        elements.fill([&](std::size_t i) { return owners[i] == runtime.rank() ? value(i) : -1; });
        if (round == 1) {
          allgather(elements.buffer(), kOffset, counts, dtype, {.name = "gather"});
        } else {
          allgather_async(elements.buffer(), kOffset, counts, dtype, {.name = "gather"}).wait();
        }
        elements.expect(value, "round " + std::to_string(round));
      }
    }
  });
}

TEST_P(SharedCollectivesTest, Broadcast_FromEveryRoot) {
  run([&](Runtime& runtime) {
    Elements elements(DType::Float32, 3001);
    for (int root = 0; root < size(); ++root) {
      const auto value = [&](int rank, std::size_t i) {
        return 5000.0 * rank + static_cast<double>(i) + root;
      };
      elements.fill([&](std::size_t i) { return value(runtime.rank(), i); });
      broadcast_async(elements.buffer(), kOffset, 3001, DType::Float32, root).wait();
      elements.expect([&](std::size_t i) { return value(root, i); }, "asynchronous");
      elements.fill([&](std::size_t i) { return 1 + value(runtime.rank(), i); });
      broadcast(elements.buffer(), kOffset, 3001, DType::Float32, root);
      elements.expect([&](std::size_t i) { return 1 + value(root, i); }, "blocking");
    }
  });
}

/// Element `i` of the block that `from` sends to `to`.
double exchanged(int from, int to, std::size_t i) {
  return 1000.0 * from + 100.0 * to + static_cast<double>(i % 89);
}

TEST_P(SharedCollectivesTest, AllToAll_BlocksWithinOneBufferAndBetweenTwo) {
  run([&](Runtime& runtime) {
    constexpr std::size_t kCount = 501;
    const std::size_t total = kCount * static_cast<std::size_t>(size());
    const auto outgoing = [&](std::size_t i) {
      return exchanged(runtime.rank(), static_cast<int>(i / kCount), i % kCount);
    };
    const auto incoming = [&](std::size_t i) {
      return exchanged(static_cast<int>(i / kCount), runtime.rank(), i % kCount);
    };
    Elements both(DType::Int32, 2 * total);
    both.fill([&](std::size_t i) { return i < total ? outgoing(i) : -1; });
    alltoall(both.buffer(), kOffset, both.buffer(), kOffset + total * sizeof(int), kCount,
             DType::Int32);
    both.expect([&](std::size_t i) { return i < total ? outgoing(i) : incoming(i - total); },
                "within one buffer");

    Elements from(DType::Int32, total);
    Elements to(DType::Int32, total);
    from.fill(outgoing);
    to.fill([](std::size_t) { return -1; });
    alltoall_async(from.buffer(), kOffset, to.buffer(), kOffset, kCount, DType::Int32).wait();
    from.expect(outgoing, "the input");
    to.expect(incoming, "between two buffers");
  });
}

TEST_P(SharedCollectivesTest, AllToAll_UnevenSplits) {
  run([&](Runtime& runtime) {
    const int rank = runtime.rank();
    const auto rows = [](int from, int to) { return (from * 3 + to * 2) % 5 * 40; };
    std::vector<std::int64_t> splits;
    std::vector<double> sent;
    std::vector<double> expected;
    for (int peer = 0; peer < size(); ++peer) {
      splits.push_back(rows(rank, peer));
      const auto out = static_cast<std::size_t>(3 * rows(rank, peer));
      for (std::size_t i = 0; i < out; ++i) sent.push_back(exchanged(rank, peer, i));
      const auto in = static_cast<std::size_t>(3 * rows(peer, rank));
      for (std::size_t i = 0; i < in; ++i) expected.push_back(exchanged(peer, rank, i));
    }
    Elements elements(DType::Float32, sent.size());
    elements.fill([&](std::size_t i) { return sent[i]; });
    const std::vector<std::int64_t> shape{static_cast<std::int64_t>(sent.size() / 3), 3};
    for (const bool blocks : {false, true}) {
      Rows received{DType::Float32, 3};
      if (blocks) {
        alltoall(elements.buffer(), kOffset, shape, DType::Float32, splits, received.allocator());
      } else {
        alltoall_async(elements.buffer(), kOffset, shape, DType::Float32, splits,
                       received.allocator())
            .wait();
      }
      ASSERT_EQ(received.element_count(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(received.at(i), expected[i]) << i;
    }
  });
}

// --- algorithms ---

std::atomic<int> zero_copies{0};

template <Task (*kRun)(CollectiveCall)>
Task counted(CollectiveCall call) {
  ++zero_copies;
  return kRun(call);
}

/// Runs one collective of each kind.
void run_all_kinds(ProcessSet& set, const SharedBuffer& buffer) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(set.size()), 8);
  Tensor own(8);
  allreduce(buffer, 0, 8, DType::Float32, {.name = "reduce", .process_set = &set});
  reduce_scatter(buffer, 0, {8 * set.size()}, own.view(), {.name = "scatter", .process_set = &set});
  allgather(buffer, 0, counts, DType::Float32, {.name = "gather", .process_set = &set});
  broadcast(buffer, 0, 8, DType::Float32, set.ranks().back(), {.name = "b", .process_set = &set});
  alltoall(buffer, 0, buffer, 1024, 8, DType::Float32, {.name = "all", .process_set = &set});
  barrier({.process_set = &set});
}

TEST_P(SharedCollectivesTest, GoWithoutCopiesWhereTheBufferIsShared) {
  Setting setting = GetParam();
  setting.config.algorithm =
      "allreduce:counted,reduce_scatter:counted,allgather:counted,broadcast:counted,"
      "alltoall:counted";
  zero_copies = 0;
  run_ranks(
      size(),
      [&](FakeWorld& world) {
        InitOptions options = options_in(world, setting.config);
        const auto add = [&](Collective collective, Task (*task)(CollectiveCall)) {
          options.algorithms.push_back({"counted", collective, Needs::PeerBuffers, true, task});
        };
        add(Collective::AllReduce, counted<ops::allreduce_zero_copy>);
        add(Collective::ReduceScatter, counted<ops::reduce_scatter_zero_copy>);
        add(Collective::AllGather, counted<ops::allgather_zero_copy>);
        add(Collective::Broadcast, counted<ops::broadcast_zero_copy>);
        add(Collective::AllToAll, counted<ops::alltoall_zero_copy>);
        Runtime runtime(std::move(options));
        Runtime::set_thread_current(&runtime);
        const SharedBuffer buffer(4096);
        EXPECT_EQ(buffer.peers(runtime.world()).size(),
                  buffer.is_shared() ? static_cast<std::size_t>(size()) : 0u);
        const std::uint64_t packed = runtime.world().metrics().bytes_packed;
        run_all_kinds(runtime.world(), buffer);
        const int ways = buffer.is_shared() ? 5 * size() : 0;
        EXPECT_EQ(zero_copies, ways);
        EXPECT_EQ(runtime.world().metrics().bytes_packed, packed);
        if (size() > 1) {  // one rank has one set
          ProcessSet& other = runtime.add_process_set({0, size() - 1});
          if (other.included()) run_all_kinds(other, buffer);
          EXPECT_EQ(zero_copies, ways) << "on another set than the buffer's";
        }
      },
      setting.network);
}

// --- joined ranks ---

TEST_P(SharedCollectivesTest, ContinueWithoutJoinedRanks) {
  if (size() == 1) GTEST_SKIP() << "nobody is left to go on";
  run([&](Runtime& runtime) {
    const int active = size() - 1;
    Elements elements(DType::Float32, 20 * static_cast<std::size_t>(size()));
    if (runtime.rank() < active) {
      const auto input = [](int rank, std::size_t i) { return input_value(rank, i); };
      elements.fill([&](std::size_t i) { return input(runtime.rank(), i); });
      Tensor own(20);
      reduce_scatter(elements.buffer(), kOffset, {20 * size()}, own.view(),
                     {.op = ReduceOp::Sum, .name = "scatter"});
      const std::size_t begin = 20 * static_cast<std::size_t>(runtime.rank());
      own.expect([&](std::size_t i) { return input_sum(active, begin + i); }, "scattered");

      const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), 20);
      allgather(elements.buffer(), kOffset, counts, DType::Float32, {.name = "gather"});
      elements.expect(
          [&](std::size_t i) {
            const int owner = static_cast<int>(i / 20);
            return owner < active ? input(owner, i) : 0;
          },
          "gathered");

      elements.fill([&](std::size_t i) { return input(runtime.rank(), i); });
      broadcast(elements.buffer(), kOffset, counts.size() * 20, DType::Float32, active - 1,
                {.name = "broadcast"});
      elements.expect([&](std::size_t i) { return input(active - 1, i); }, "broadcast");

      const std::string text = text_thrown_by<InvalidArgument>([&] {
        alltoall(elements.buffer(), kOffset, elements.buffer(), 32768, 8, DType::Float32,
                 {.name = "all"});
      });
      expect_contains(text, "has joined");
      elements.expect([&](std::size_t i) { return input(active - 1, i); }, "nothing exchanged");
    }
    join();
    expect_sum_works(runtime, "y");
  });
}

}  // namespace kolo::test::shared_collectives_test
