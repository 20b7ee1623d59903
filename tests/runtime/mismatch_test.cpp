// What users see when ranks disagree about an operation.
#include <cstddef>
#include <cstdint>
#include <functional>
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

namespace kolo::test {
namespace {

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
  return allgather_async(view, [](const std::vector<std::int64_t>&) -> void* { return nullptr; },
                         {.name = "x"});
}

std::vector<Disagreement> all_disagreements() {
  const auto usual = [](const Tensor& t) { return reduce(with_shape(t, {3, 4})); };
  return {
      {"DType", "dtype", "float32", "int64", usual,
       [](const Tensor& t) {
         return reduce(with_shape(t, {3, 4}, DType::Int64));
       }},
      {"Shape", "shape", "[3, 4]", "[4, 4]", usual,
       [](const Tensor& t) {
         return reduce(with_shape(t, {4, 4}));
       }},
      {"Dimensions", "shape", "[3, 4]", "[12]", usual,
       [](const Tensor& t) { return reduce(with_shape(t, {12})); }},
      {"Operation", "reduction", "Average", "Max", usual,
       [](const Tensor& t) {
         return reduce(with_shape(t, {3, 4}), {.op = ReduceOp::Max});
       }},
      {"Prescale", "prescale", "1", "0.5", usual,
       [](const Tensor& t) {
         return reduce(with_shape(t, {3, 4}), {.prescale = 0.5});
       }},
      {"Postscale", "postscale", "1", "0.25", usual,
       [](const Tensor& t) {
         return reduce(with_shape(t, {3, 4}), {.postscale = 0.25});
       }},
      {"Compression", "compression", "none", "bf16", usual,
       [](const Tensor& t) {
         return reduce(with_shape(t, {3, 4}), {.compression = Compression::bf16()});
       }},
      {"Collective", "operation", "allreduce", "broadcast", usual,
       [](const Tensor& t) {
         return broadcast_async(with_shape(t, {3, 4}), 0, {.name = "x"});
       }},
      {"Root", "root", "0", "1",
       [](const Tensor& t) { return broadcast_async(with_shape(t, {5}), 0, {.name = "x"}); },
       [](const Tensor& t) { return broadcast_async(with_shape(t, {5}), 1, {.name = "x"}); }},
      {"RowShape", "shape", "[4]", "[5]",
       [](const Tensor& t) {
         return gather(with_shape(t, {2, 4}));
       },
       [](const Tensor& t) {
         return gather(with_shape(t, {2, 5}));
       }},
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

}  // namespace
}  // namespace kolo::test
