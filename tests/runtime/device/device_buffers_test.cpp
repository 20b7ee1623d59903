// Operations on SharedBuffers of GPUs, also if ranks have joined, which have no buffer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/shared_buffer.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/device/programs.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::device_buffers_test {

using Values = std::vector<float>;

constexpr std::size_t kFloats = 300;

float value_of(int rank, std::size_t i) {
  return static_cast<float>(1000 * rank) + static_cast<float>(i);
}

/// A SharedBuffer whose element i is initially value_of(rank, i).
class Buffer {
 public:
  Buffer(GpuProgram& program, const std::string& name, int rank)
      : program_(program),
        memory_(program.allocate(kFloats)),
        buffer_(name, program.view(memory_, kFloats), memory_) {
    for (std::size_t i = 0; i < kFloats; ++i) expected_.push_back(value_of(rank, i));
    program.write(memory_, expected_);
  }

  const SharedBuffer& buffer() const { return buffer_; }
  std::byte* at(std::size_t i) const { return memory_.get() + i * sizeof(float); }
  /// The elements from `begin` on have changed to `values`, and no others.
  void expect(std::size_t begin, const Values& values, const std::string& what) {
    std::copy(values.begin(), values.end(), expected_.begin() + static_cast<std::ptrdiff_t>(begin));
    EXPECT_EQ(program_.read(memory_, kFloats), expected_) << what;
  }

 private:
  GpuProgram& program_;
  std::shared_ptr<std::byte> memory_;
  SharedBuffer buffer_;
  Values expected_;
};

/// Sums of elements begin to end of the initial buffers, over the ranks below `ranks`.
Values sums(int ranks, std::size_t begin, std::size_t end, float factor = 1.0F) {
  Values values;
  for (std::size_t i = begin; i < end; ++i) {
    float sum = 0.0F;
    for (int rank = 0; rank < ranks; ++rank) sum += value_of(rank, i);
    values.push_back(factor * sum);
  }
  return values;
}

Values values_of(int rank, std::size_t begin, std::size_t end) {
  Values values;
  for (std::size_t i = begin; i < end; ++i) values.push_back(value_of(rank, i));
  return values;
}

/// One rank's operations, in which the first `active` ranks take part.
struct Operations {
  GpuProgram& program;
  Runtime& runtime;
  int active;

  Buffer make(const std::string& name) const { return {program, name, runtime.rank()}; }
  int size() const { return runtime.size(); }
  AllreduceOptions sum_named(const std::string& name) const {
    return {.op = ReduceOp::Sum, .name = name, .stream = program.stream()};
  }
  OperationOptions named(const std::string& name) const {
    return {.name = name, .stream = program.stream()};
  }

  void all_reduce() const {
    Buffer memory = make("all-reduced");
    AllreduceOptions options = sum_named("all-reduce");
    options.prescale = 0.5;
    allreduce(memory.buffer(), 7 * sizeof(float), 101, DType::Float32, options);
    memory.expect(7, sums(active, 7, 108, 0.5F), options.name);
  }

  /// Rows of two elements, more of them on the first ranks, to private memory or in place.
  void reduce_scatter(bool in_place) const {
    const std::string name = in_place ? "scatter in place" : "scatter";
    Buffer memory = make("memory of " + name);
    const std::size_t rows = 3 * static_cast<std::size_t>(size()) + 1;
    const auto [begin, length] = ops::piece_of(rows, size(), runtime.rank());
    const auto output = program.allocate(2 * length);
    TensorView view = program.view(output, 2 * length);
    if (in_place) view.data = memory.at(2 * begin);
    view.shape = {static_cast<std::int64_t>(length), 2};
    kolo::reduce_scatter(memory.buffer(), 0, {static_cast<std::int64_t>(rows), 2}, view,
                         sum_named(name));
    const Values expected = sums(active, 2 * begin, 2 * (begin + length));
    memory.expect(2 * begin,
                  in_place ? expected : values_of(runtime.rank(), 2 * begin, 2 * (begin + length)),
                  name);
    if (in_place) return;
    EXPECT_EQ(program.read(output, 2 * length), expected);
  }

  /// The same number of elements from each rank, or more from some.
  void all_gather(bool is_even) const {
    const std::string name = is_even ? "even gather" : "uneven gather";
    Buffer memory = make("memory of " + name);
    std::vector<std::int64_t> counts;
    Values expected;
    std::size_t begin = 0;
    for (int rank = 0; rank < size(); ++rank) {
      const std::size_t count = is_even ? 5 : 2 * static_cast<std::size_t>(rank) + 1;
      counts.push_back(static_cast<std::int64_t>(count));
      // A joined rank contributes zeros.
      const Values part =
          rank < active ? values_of(rank, begin + 3, begin + 3 + count) : Values(count, 0.0F);
      expected.insert(expected.end(), part.begin(), part.end());
      begin += count;
    }
    allgather(memory.buffer(), 3 * sizeof(float), counts, DType::Float32, named(name));
    memory.expect(3, expected, name);
  }

  void broadcasts() const {
    for (int root = 0; root < active; ++root) {
      const std::string name = "broadcast from " + std::to_string(root);
      Buffer memory = make("memory of " + name);
      broadcast(memory.buffer(), 16, 77, DType::Float32, root, named(name));
      memory.expect(4, values_of(root, 4, 81), name);
    }
  }

  /// Exchanges rows of a buffer into private memory; joined ranks get none.
  void exchange_rows() const {
    Buffer memory = make("exchanged");
    const auto ranks = static_cast<std::size_t>(active);
    std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 0);
    std::fill_n(splits.begin(), ranks, 2);
    const auto output = program.allocate(6 * ranks);
    alltoall(
        memory.buffer(), 0, {2 * static_cast<std::int64_t>(ranks), 3}, DType::Float32, splits,
        [&](const std::vector<std::int64_t>&) { return output.get(); }, named("rows"));
    const std::size_t own = 6 * static_cast<std::size_t>(runtime.rank());
    Values expected;
    for (int rank = 0; rank < active; ++rank) {
      const Values rows = values_of(rank, own, own + 6);
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    EXPECT_EQ(program.read(output, expected.size()), expected);
  }

  /// Exchanges blocks from one buffer to another.
  void exchange_blocks() const {
    Buffer from = make("from");
    Buffer to = make("to");
    alltoall(from.buffer(), 0, to.buffer(), 12, 7, DType::Float32, named("blocks"));
    const std::size_t own = 7 * static_cast<std::size_t>(runtime.rank());
    Values expected;
    for (int rank = 0; rank < size(); ++rank) {
      const Values block = values_of(rank, own, own + 7);
      expected.insert(expected.end(), block.begin(), block.end());
    }
    to.expect(3, expected, "blocks");
  }

  void run_all() const {
    all_reduce();
    for (const bool in_place : {false, true}) reduce_scatter(in_place);
    for (const bool is_even : {false, true}) all_gather(is_even);
    broadcasts();
    exchange_rows();
    if (active == size()) exchange_blocks();  // joined ranks would receive blocks
  }
};

struct Variant {
  int size;
  bool is_direct;  ///< reductions
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.size << (variant.is_direct ? " direct" : " by NCCL");
}

class DeviceBuffersTest : public testing::TestWithParam<Variant> {
 protected:
  int size() const { return GetParam().size; }
  void run(const std::function<void(Runtime&, GpuProgram&)>& body) {
    Setting setting = setting_with_gpus(size());
    if (GetParam().is_direct) {
      setting.config.algorithm = "allreduce:direct,reduce_scatter:direct";
    }
    run_programs(setting, [&](Runtime& runtime, FakeWorld& world) {
      GpuProgram program(world);
      body(runtime, program);
    });
  }
};

std::vector<Variant> all_variants() {
  std::vector<Variant> all;
  for (const int size : {1, 2, 3, 4}) {
    for (const bool is_direct : {false, true}) all.push_back({size, is_direct});
  }
  return all;
}

std::string name_variant(const testing::TestParamInfo<Variant>& info) {
  return (info.param.is_direct ? "Direct" : "Nccl") + ("Np" + std::to_string(info.param.size));
}

INSTANTIATE_TEST_SUITE_P(, DeviceBuffersTest, testing::ValuesIn(all_variants()), name_variant);

TEST_P(DeviceBuffersTest, AllKinds) {
  run([&](Runtime& runtime, GpuProgram& program) {
    Operations{program, runtime, size()}.run_all();
  });
}

TEST_P(DeviceBuffersTest, AllKindsWithoutRanksThatHaveJoined) {
  for (int active = 1; active < size(); ++active) {
    run([&](Runtime& runtime, GpuProgram& program) {
      if (runtime.rank() < active) Operations{program, runtime, active}.run_all();
      join();
    });
  }
}

TEST(SharedBufferTest, OwnerThatPointsToNothing_IsKept) {
  bool is_released = false;
  float element = 0;
  {
    const SharedBuffer buffer(
        "x", TensorView{&element, DType::Float32, {}},
        std::shared_ptr<void>(static_cast<void*>(nullptr), [&](void*) { is_released = true; }));
    EXPECT_FALSE(is_released);
  }
  EXPECT_TRUE(is_released);
}

}  // namespace kolo::test::device_buffers_test
