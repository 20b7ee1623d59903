// What users see when ranks disagree about an operation: for each field of a request, one rank
// differs.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::mismatch_test {

using Shape = std::vector<std::int64_t>;

/// One rank's call under the name "x".
using Call = std::function<Handle(const Tensor&)>;

struct Disagreement {
  std::string what;
  std::string field;
  std::string usual_value;
  std::string other_value;
  Call usual;
  Call other;
};

void PrintTo(const Disagreement& item, std::ostream* out) { *out << item.what; }

TensorView view_of(const Tensor& tensor, Shape shape, DType dtype = DType::Float32) {
  TensorView view = tensor.view();
  view.shape = std::move(shape);
  view.dtype = dtype;
  return view;
}

Call reduce(Shape shape, AllreduceOptions options = {}, DType dtype = DType::Float32) {
  options.name = "x";
  return [=](const Tensor& tensor) {
    const TensorView view = view_of(tensor, shape, dtype);
    return allreduce_async(view, view, options);
  };
}

Call scatter(Shape shape, AllreduceOptions options = {}) {
  options.name = "x";
  return [=](const Tensor& tensor) {
    TensorView output = view_of(tensor, shape);
    output.shape[0] = scattered_rows(shape[0], size(), rank());
    return reduce_scatter_async(view_of(tensor, shape), output, options);
  };
}

Call reduce_group(std::vector<std::pair<Shape, DType>> members) {
  return [=](const Tensor& tensor) {
    std::vector<InputOutput> tensors;
    for (const auto& [shape, dtype] : members) {
      const TensorView view = view_of(tensor, shape, dtype);
      tensors.push_back({view, view});
    }
    return grouped_allreduce_async(tensors, {.name = "x"});
  };
}

Call broadcast_from(int root) {
  return [=](const Tensor& tensor) {
    return broadcast_async(view_of(tensor, {5}), root, {.name = "x"});
  };
}

/// Memory for rows that lives as long as the operation.
struct Place {
  std::shared_ptr<std::vector<std::byte>> memory = std::make_shared<std::vector<std::byte>>(65536);
  AllocateRows allocator() const {
    return [memory = memory](const std::vector<std::int64_t>&) -> void* { return memory->data(); };
  }
};

Call gather(Shape shape, DType dtype = DType::Float32) {
  return [=](const Tensor& tensor) {
    const Place place;
    return allgather_async(view_of(tensor, shape, dtype), place.allocator(),
                           {.name = "x", .keep_alive = place.memory});
  };
}

Call all_to_all(Shape shape) {
  return [=](const Tensor& tensor) {
    const Place place;
    std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 0);
    splits.front() = shape[0];
    return alltoall_async(view_of(tensor, shape), splits, place.allocator(),
                          {.name = "x", .keep_alive = place.memory});
  };
}

Call meet() {
  return [](const Tensor&) { return barrier_async({.name = "x"}); };
}

void combine_nothing(DType, const void*, void*, std::size_t) {}
void fill_nothing(DType, void*, std::size_t) {}

std::vector<Disagreement> all_disagreements() {
  const Call usual = reduce({3, 4});
  const auto custom = [](std::string name) {
    return reduce({3, 4}, {.op = ReduceOp::Custom, .custom = std::move(name)});
  };
  const DType f32 = DType::Float32;
  return {
      {"DType", "dtype", "float32", "int64", usual, reduce({3, 4}, {}, DType::Int64)},
      {"Shape", "shape", "[3, 4]", "[4, 4]", usual, reduce({4, 4})},
      {"Dimensions", "shape", "[3, 4]", "[12]", usual, reduce({12})},
      {"ScalarOrOne", "shape", "[]", "[1]", reduce({}), reduce({1})},
      {"Reduction", "reduction", "Average", "Max", usual, reduce({3, 4}, {.op = ReduceOp::Max})},
      {"CustomOrNot", "reduction", "Average", "first", usual, custom("first")},
      {"Custom", "reduction", "first", "second", custom("first"), custom("second")},
      {"Prescale", "prescale factor", "1", "0.5", usual, reduce({3, 4}, {.prescale = 0.5})},
      {"Postscale", "postscale factor", "1", "0.25", usual, reduce({3, 4}, {.postscale = 0.25})},
      {"CloseScale", "prescale factor", "1", "1.0000000000000002", usual,
       reduce({3, 4}, {.prescale = 1.0000000000000002})},
      {"JoinDivisor", "join divisor", "all ranks", "active ranks", usual,
       reduce({3, 4}, {.join_divisor = JoinDivisor::Active})},
      {"Compression", "compression", "none", "bf16", usual,
       reduce({3, 4}, {.compression = Compression::bf16()})},
      {"Operation", "operation", "allreduce", "broadcast", usual, broadcast_from(0)},
      {"ReduceScatter", "operation", "allreduce", "reduce_scatter", usual, scatter({3, 4})},
      {"AllGather", "operation", "allreduce", "allgather", usual, gather({3, 4})},
      {"AllToAll", "operation", "allreduce", "alltoall", usual, all_to_all({3, 4})},
      {"Barrier", "operation", "allreduce", "barrier", usual, meet()},
      {"Root", "root rank", "0", "1", broadcast_from(0), broadcast_from(1)},
      {"RowShape", "shape", "[4]", "[5]", gather({2, 4}), gather({2, 5})},
      {"RowDimensions", "shape", "[4]", "[2, 2]", gather({2, 4}), gather({2, 2, 2})},
      {"RowDType", "dtype", "float32", "int8", gather({2, 4}), gather({2, 4}, DType::Int8)},
      {"SplitRowShape", "shape", "[4]", "[]", all_to_all({2, 4}), all_to_all({2})},
      {"ScatteredShape", "shape", "[9, 2]", "[8, 2]", scatter({9, 2}), scatter({8, 2})},
      {"ScatteredReduction", "reduction", "Average", "Min", scatter({9, 2}),
       scatter({9, 2}, {.op = ReduceOp::Min})},
      {"GroupSize", "number of tensors in the group", "2", "3",
       reduce_group({{{3}, f32}, {{4}, f32}}), reduce_group({{{3}, f32}, {{4}, f32}, {{5}, f32}})},
      {"GroupOrNot", "number of tensors in the group", "1", "2", usual,
       reduce_group({{{3, 4}, f32}, {{1}, f32}})},
      {"MemberShape", "shape of tensor 1 of the group", "[4]", "[5]",
       reduce_group({{{3}, f32}, {{4}, f32}}), reduce_group({{{3}, f32}, {{5}, f32}})},
      {"MemberDType", "dtype of tensor 0 of the group", "float32", "float16",
       reduce_group({{{3}, f32}, {{4}, f32}}), reduce_group({{{3}, DType::Float16}, {{4}, f32}})},
      // The device cannot differ: a build without CUDA refuses such memory at the call.
  };
}

void run_with_reductions(const Setting& setting, const std::function<void(Runtime&)>& body) {
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        InitOptions options = options_in(world, setting.config);
        options.reductions = {{"first", combine_nothing, fill_nothing},
                              {"second", combine_nothing, fill_nothing}};
        Runtime runtime(std::move(options));
        Runtime::set_thread_current(&runtime);
        body(runtime);
      },
      setting.network);
}

/// Worlds of 2, 3 and 4 ranks, in shared memory and by messages.
std::vector<Setting> some_worlds() {
  const auto world = [](int size, bool has_shared_memory) {
    Setting setting{.size = size, .network = {.has_shared_memory = has_shared_memory}};
    setting.config.tree_width = 2;
    return setting;
  };
  return {world(2, true), world(3, false), world(4, true)};
}

/// What is in flight besides.
class Traffic {
 public:
  explicit Traffic(Runtime& runtime) : runtime_(runtime) {
    for (std::size_t t = 0; t < kTensors; ++t) {
      tensors_.emplace_back(static_cast<std::int64_t>(10 * t + 1));
    }
  }
  /// Submits the tensors from `begin` to before `end`.
  void submit(std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      tensors_[t].fill([&](std::size_t i) { return input_value(runtime_.rank(), i, t); });
      handles_.push_back(
          allreduce_async(tensors_[t].view(), tensors_[t].view(),
                          {.op = ReduceOp::Sum, .name = "traffic " + std::to_string(t)}));
    }
  }
  void expect_sums() {
    for (Handle& handle : handles_) handle.wait();
    for (std::size_t t = 0; t < kTensors; ++t) {
      tensors_[t].expect([&](std::size_t i) { return input_sum(runtime_.size(), i, t); },
                         "traffic " + std::to_string(t));
    }
  }
  static constexpr std::size_t kTensors = 6;

 private:
  Runtime& runtime_;
  std::vector<Tensor> tensors_;
  std::vector<Handle> handles_;
};

using Expect = std::function<void(Runtime&, Handle&, int odd)>;

/// All ranks but `odd` make the usual call; `expect` judges what each gets; the next operations
/// work.
void disagree(Runtime& runtime, const Call& usual, const Call& other, int odd, bool has_traffic,
              const Expect& expect) {
  const Tensor tensor(64, DType::Float64);
  Traffic traffic(runtime);
  if (has_traffic) traffic.submit(0, Traffic::kTensors / 2);
  Handle handle = runtime.rank() == odd ? other(tensor) : usual(tensor);
  if (has_traffic) traffic.submit(Traffic::kTensors / 2, Traffic::kTensors);
  expect(runtime, handle, odd);
  if (has_traffic) traffic.expect_sums();
  expect_sum_works(runtime, "y");
}

/// Cold, in the steady state, and where both calls have become known; alone and with traffic.
void disagree_in_every_way(const Call& usual, const Call& other, bool other_runs,
                           const Expect& expect) {
  for (const Setting& setting : some_worlds()) {
    for (const bool has_traffic : {false, true}) {
      run_with_reductions(setting, [&](Runtime& runtime) {
        SCOPED_TRACE(std::to_string(setting.size) + " ranks");
        const Tensor tensor(64, DType::Float64);
        disagree(runtime, usual, other, setting.size - 1, has_traffic, expect);
        disagree(runtime, usual, other, 0, has_traffic, expect);
        for (int step = 0; step < 4; ++step) usual(tensor).wait();
        disagree(runtime, usual, other, 1, has_traffic, expect);
        usual(tensor).wait();
        if (other_runs) other(tensor).wait();
        disagree(runtime, usual, other, 0, has_traffic, expect);
        disagree(runtime, usual, other, setting.size - 1, has_traffic, expect);
        usual(tensor).wait();
      });
    }
  }
}

class MismatchTest : public testing::TestWithParam<Disagreement> {};

INSTANTIATE_TEST_SUITE_P(, MismatchTest, testing::ValuesIn(all_disagreements()),
                         [](const auto& item) { return item.param.what; });

TEST_P(MismatchTest, RaisesOnEveryRank) {
  const Disagreement& item = GetParam();
  disagree_in_every_way(item.usual, item.other, true, [&](Runtime&, Handle& handle, int odd) {
    const std::string text = text_thrown_by<MismatchError>([&] { handle.wait(); });
    expect_contains(text, "'x' on process set world: " + item.field + " differs: ");
    // Two ranks that disagree are enough; those that come later find the same error.
    expect_contains(text, item.usual_value + " on rank");
    expect_contains(text, item.other_value + " on rank " + std::to_string(odd));
  });
}

/// A call that cannot be right, whatever the other ranks do.
struct Defect {
  std::string what;
  std::string text;
  Call usual;
  Call wrong;
};

void PrintTo(const Defect& item, std::ostream* out) { *out << item.what; }

std::vector<Defect> all_defects() {
  const auto to_all = [](std::vector<std::int64_t> first_splits) {
    return [=](const Tensor& tensor) {
      const Place place;
      std::vector<std::int64_t> splits = first_splits;
      if (!splits.empty()) splits.resize(static_cast<std::size_t>(size()));
      return alltoall_async(view_of(tensor, {12, 2}), splits, place.allocator(),
                            {.name = "x", .keep_alive = place.memory});
    };
  };
  const auto resized = [](const Tensor& tensor) {
    return allreduce_async(view_of(tensor, {3, 4}), view_of(tensor, {4, 3}), {.name = "x"});
  };
  const auto without_memory = [](const Tensor& tensor) {
    TensorView view = view_of(tensor, {3, 4});
    view.data = nullptr;
    return allreduce_async(view, view, {.name = "x"});
  };
  const auto on_gpu = [](const Tensor& tensor) {
    TensorView view = view_of(tensor, {3, 4});
    view.device.kind = DeviceKind::Cuda;
    return allreduce_async(view, view, {.name = "x"});
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {
      {"Splits", "the splits add up to 5 rows, the tensor has 12", to_all({}), to_all({5, 0})},
      {"NegativeSplit", "a split is negative", to_all({}), to_all({13, -1})},
      {"OutputShape", "the output does not have the shape of the result", reduce({3, 4}), resized},
      {"NoMemory", "the tensor has elements but no memory", reduce({3, 4}), without_memory},
      {"NegativeDimension", "a dimension of the tensor is negative", reduce({3, 4}),
       reduce({3, -4})},
      {"Device", "the tensor lies on a CUDA device, but this build of Kolo is for CPUs alone",
       reduce({3, 4}), on_gpu},
      {"Scale", "a scale is not a finite number", reduce({3, 4}),
       reduce({3, 4}, {.prescale = nan})},
      {"Compression", "zip", reduce({3, 4}),
       reduce({3, 4}, {.compression = Compression::named("zip")})},
      {"Custom", "custom reduction \"third\"", reduce({3, 4}),
       reduce({3, 4}, {.op = ReduceOp::Custom, .custom = "third"})},
      {"Root", "root rank 9 is not a member", broadcast_from(0), broadcast_from(9)},
      {"BoolSum", "bool supports only Min (and), Max (or)",
       reduce({3, 4}, {.op = ReduceOp::Max}, DType::Bool),
       reduce({3, 4}, {.op = ReduceOp::Sum}, DType::Bool)},
      {"IntegerAdasum", "Adasum is for floating types", reduce({3, 4}, {}, DType::Int32),
       reduce({3, 4}, {.op = ReduceOp::Adasum}, DType::Int32)},
      {"Scalar", "a scalar has no rows", gather({2, 4}), gather({})},
  };
}

class DefectTest : public testing::TestWithParam<Defect> {};

INSTANTIATE_TEST_SUITE_P(, DefectTest, testing::ValuesIn(all_defects()),
                         [](const auto& item) { return item.param.what; });

TEST_P(DefectTest, OfOneRankRaisesOnEveryRank) {
  const Defect& item = GetParam();
  disagree_in_every_way(item.usual, item.wrong, false, [&](Runtime&, Handle& handle, int odd) {
    const std::string text = text_thrown_by<InvalidArgument>([&] { handle.wait(); });
    expect_contains(text, "'x' on process set world: rank " + std::to_string(odd) + ": ");
    expect_contains(text, item.text);
  });
}

TEST(MismatchTextTest, PlacementInSharedMemoryMustAgree) {
  run_runtimes(2, [](Runtime& runtime) {
    const SharedBuffer buffer(1024, {.name = "memory"});
    for (int step = 0; step < 3; ++step) {
      const std::size_t offset = runtime.rank() == 0 ? 0 : 64;
      Handle handle = allreduce_async(buffer, offset, 8, DType::Float32, {.name = "x"});
      const std::string text = text_thrown_by<MismatchError>([&] { handle.wait(); });
      expect_contains(text, " + 0 on rank 0");
      expect_contains(text, " + 64 on rank 1");
      expect_sum_works(runtime, "y");
      allreduce_async(buffer, 0, 8, DType::Float32, {.name = "x"}).wait();
    }
  });
}

TEST(MismatchTextTest, SharedMemoryOnOneRankAloneIsRefused) {
  run_runtimes(2, [](Runtime& runtime) {
    const SharedBuffer buffer(1024, {.name = "memory"});
    Tensor tensor(8);
    Handle handle = runtime.rank() == 0
                        ? allreduce_async(buffer, 0, 8, DType::Float32, {.name = "x"})
                        : allreduce_async(tensor.view(), tensor.view(), {.name = "x"});
    const std::string text = text_thrown_by<MismatchError>([&] { handle.wait(); });
    expect_contains(text, " + 0 on rank 0, none on rank 1");
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

TEST(MismatchTextTest, EveryRankMayBeWrongInItsOwnWay) {
  run_runtimes(4, [](Runtime& runtime) {
    const Tensor tensor(DType::Float32, {1 + runtime.rank()});
    Handle handle = allreduce_async(tensor.view(), tensor.view(), {.name = "x"});
    expect_contains(text_thrown_by<MismatchError>([&] { handle.wait(); }), "shape differs");
    TensorView broken = tensor.view();
    broken.data = nullptr;
    handle = allreduce_async(broken, broken, {.name = "x"});
    expect_contains(text_thrown_by<InvalidArgument>([&] { handle.wait(); }), "no memory");
    expect_sum_works(runtime, "x");
  });
}

}  // namespace kolo::test::mismatch_test
