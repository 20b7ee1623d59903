// Errors on all ranks when one rank makes an invalid call.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/disagreement.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::invalid_request_test {

using namespace disagreement;

/// A call that is invalid whatever the other ranks do.
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
  constexpr std::int64_t kHuge = std::int64_t{1} << 32;
  const auto gather_known = [](std::int64_t of_others) {
    return [=](const Tensor& tensor) {
      std::vector<std::int64_t> rows(static_cast<std::size_t>(size()), of_others);
      rows[static_cast<std::size_t>(rank())] = 1;
      const TensorView output = view_of(tensor, {1, 2});
      TensorView input = output;
      input.data = static_cast<std::byte*>(output.data) +
                   output.size_bytes() * static_cast<std::size_t>(rank());
      return allgather_async(input, output.data, rows, {.name = "x"});
    };
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {
      {"Splits", "the splits add up to 5 rows, the tensor has 12", to_all({}), to_all({5, 0})},
      {"NegativeSplit", "a split is negative", to_all({}), to_all({13, -1})},
      {"OutputShape", "the output does not have the shape of the result", reduce({3, 4}), resized},
      {"NoMemory", "the tensor has elements but no memory", reduce({3, 4}), without_memory},
      {"NegativeDimension", "a dimension of the tensor is negative", reduce({3, 4}),
       reduce({3, -4})},
      {"ElementsMultiplyTo2To64", "shape [4294967296, 4294967296] of float32 is longer than any",
       reduce({3, 4}), reduce({kHuge, kHuge})},
      {"BytesMultiplyTo2To64", "shape [4611686018427387904] of float32 is longer than any memory",
       reduce({3, 4}), reduce({kHuge << 30})},
      {"RowsMultiplyTo2To64", "shape [0, 4294967296, 4294967296] of float32 is longer than any",
       gather({2, 4}), gather({0, kHuge, kHuge})},
      {"KnownRowsMultiplyTo2To64", "shape [2305843009213693952, 2] of float32 is longer than any",
       gather_known(1), gather_known(kHuge << 29)},
      {"Device", "the tensor lies on a CUDA device, but this build of Kolo is for CPUs alone",
       reduce({3, 4}), on_gpu},
      {"Scale", "a scale is not a finite number", reduce({3, 4}),
       reduce({3, 4}, {.prescale = nan})},
      {"Compression", "zip", reduce({3, 4}),
       reduce({3, 4}, {.compression = Compression::named("zip")})},
      {"Custom", "custom reduction \"third\"", reduce({3, 4}),
       reduce({3, 4}, {.op = ReduceOp::Custom, .custom = "third"})},
      {"Root", "root rank 9 is not a member", broadcast_from(0), broadcast_from(9)},
      {"FloatBits", "BitXor is for integers and bool, not float32. View it as integers.",
       reduce({3, 4}), reduce({3, 4}, {.op = ReduceOp::BitXor})},
      {"BoolSum", "bool supports only Min (and), Max (or), BitXor and Custom, not Sum",
       reduce({3, 4}, {.op = ReduceOp::Max}, DType::Bool),
       reduce({3, 4}, {.op = ReduceOp::Sum}, DType::Bool)},
      {"ComplexMin", "Min of complex64 is not defined: complex numbers have no order",
       reduce({3, 4}, {.op = ReduceOp::Sum}, DType::Complex64),
       reduce({3, 4}, {.op = ReduceOp::Min}, DType::Complex64)},
      {"ComplexMax", "Reduce the real and imaginary parts, as of torch::view_as_real.",
       reduce({1, 4}, {.op = ReduceOp::Sum}, DType::Complex128),
       reduce({1, 4}, {.op = ReduceOp::Max}, DType::Complex128)},
      {"IntegerAdasum", "Adasum is for floating and complex types",
       reduce({3, 4}, {}, DType::Int32), reduce({3, 4}, {.op = ReduceOp::Adasum}, DType::Int32)},
      {"Scalar", "a scalar has no rows", gather({2, 4}), gather({})},
  };
}

class InvalidRequestTest : public testing::TestWithParam<Defect> {};

INSTANTIATE_TEST_SUITE_P(, InvalidRequestTest, testing::ValuesIn(all_defects()),
                         [](const auto& item) { return item.param.what; });

TEST_P(InvalidRequestTest, InvalidRequestOfOneRank_IsThrownOnEveryRank) {
  const Defect& item = GetParam();
  disagree(item.usual, item.wrong, [&](Handle& handle, int odd) {
    const std::string text = text_thrown_by<InvalidArgument>([&] { handle.wait(); });
    expect_contains(text, "'x' on process set world: rank " + std::to_string(odd) + ": ");
    expect_contains(text, item.text);
  });
}

}  // namespace kolo::test::invalid_request_test
