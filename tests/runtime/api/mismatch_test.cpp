// Errors when ranks disagree about an operation: for each field of a request, one rank differs.
#include <cstddef>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/disagreement.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::mismatch_test {

using namespace disagreement;

struct Disagreement {
  std::string what;
  std::string field;
  std::string usual_value;
  std::string other_value;
  Call usual;
  Call other;
};

void PrintTo(const Disagreement& item, std::ostream* out) { *out << item.what; }

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
      {"CompressionScope", "compression scope", "everywhere", "between nodes", usual,
       reduce({3, 4}, {.compression_scope = CompressionScope::BetweenNodes})},
      {"Operation", "operation", "allreduce", "broadcast", usual, broadcast_from(0)},
      {"ReduceScatter", "operation", "allreduce", "reduce_scatter", usual, scatter({3, 4})},
      {"AllGather", "operation", "allreduce", "allgather", usual, gather({3, 4})},
      {"AllToAll", "operation", "allreduce", "alltoall", usual, all_to_all({3, 4})},
      {"Barrier", "operation", "allreduce", "barrier", usual, barrier_call()},
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
      {"Purpose", "purpose", "the end of the step", "none", barrier_call("the end of the step"),
       barrier_call()},
      {"PurposeOfOperation", "purpose", "none", "another step", usual,
       barrier_call("another step")},
      // No case for the device: without CUDA, the call rejects memory of another device.
  };
}

class MismatchTest : public testing::TestWithParam<Disagreement> {};

INSTANTIATE_TEST_SUITE_P(, MismatchTest, testing::ValuesIn(all_disagreements()),
                         [](const auto& item) { return item.param.what; });

TEST_P(MismatchTest, Mismatch_IsThrownOnEveryRank) {
  const Disagreement& item = GetParam();
  disagree(item.usual, item.other, [&](Handle& handle, int odd) {
    const std::string text = text_thrown_by<MismatchError>([&] { handle.wait(); });
    expect_contains(text, "'x' on process set world: " + item.field + " differs: ");
    // A disagreement of two ranks is enough; later ranks get the same error.
    expect_contains(text, item.usual_value + " on rank");
    expect_contains(text, item.other_value + " on rank " + std::to_string(odd));
  });
}

TEST(MismatchTextTest, SharedBuffersOfUnequalSizes_AreRejected) {
  run_runtimes(2, [](Runtime& runtime) {
    const std::size_t size = 64 * (1 + static_cast<std::size_t>(runtime.rank()));
    const std::string text =
        text_thrown_by<MismatchError>([&] { SharedBuffer(size, {.name = "memory"}); });
    expect_contains(text, "[64] on rank 0");
    expect_contains(text, "[128] on rank 1");
    expect_sum_works(runtime, "y");
  });
}

TEST(MismatchTextTest, EveryRankInvalidInItsOwnWay_FailsEverywhere) {
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
