// Products of complex numbers, in every kind of world: they catch errors that sums cannot, as sums
// do not mix real and imaginary parts.
#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/every_world.hpp"
#include "runtime/join_expectations.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::complex_test {

using Value = std::complex<double>;

class ComplexTest : public EveryWorldTest {
 protected:
  /// Whole numbers, so that products of seven are exact in float32.
  static Value input(int rank, std::size_t i) {
    const auto mixed = i + 2 * static_cast<std::size_t>(rank);
    return {static_cast<double>(mixed % 3) - 1, static_cast<double>(mixed % 4) - 1};
  }
  static Value product(int size, std::size_t i, double scale) {
    Value result = 1;
    for (int rank = 0; rank < size; ++rank) result *= scale * input(rank, i);
    return result;
  }
};

INSTANTIATE_TEST_SUITE_P(, ComplexTest, testing::ValuesIn(cpu_settings()), name_of_setting);

template <class T>
std::vector<std::complex<T>> inputs(int rank, std::size_t count, auto formula) {
  std::vector<std::complex<T>> values;
  for (std::size_t i = 0; i < count; ++i) values.emplace_back(formula(rank, i));
  return values;
}

template <class T>
TensorView view_of(std::vector<std::complex<T>>& values) {
  return {values.data(),
          sizeof(T) == 4 ? DType::Complex64 : DType::Complex128,
          {static_cast<std::int64_t>(values.size())},
          Device{}};
}

template <class T>
void expect_products(const Runtime& runtime, auto input, auto product) {
  const std::string name = std::to_string(sizeof(T));
  for (const std::size_t count : {1u, 5u, 1003u}) {
    std::vector<std::complex<T>> values = inputs<T>(runtime.rank(), count, input);
    const std::int64_t rows = static_cast<std::int64_t>(count);
    std::size_t begin = 0;
    for (int rank = 0; rank < runtime.rank(); ++rank) {
      begin += static_cast<std::size_t>(scattered_rows(rows, runtime.size(), rank));
    }
    const std::int64_t own = scattered_rows(rows, runtime.size(), runtime.rank());
    std::vector<std::complex<T>> part(static_cast<std::size_t>(own));
    reduce_scatter(view_of(values), view_of(part), {.op = ReduceOp::Product, .prescale = -2});
    for (std::size_t i = 0; i < part.size(); ++i) {
      ASSERT_EQ(Value(part[i]), product(runtime.size(), begin + i, -2)) << name << ", part " << i;
    }
    allreduce(view_of(values), view_of(values), {.op = ReduceOp::Product, .postscale = 0.5});
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(Value(values[i]), 0.5 * product(runtime.size(), i, 1)) << name << ", element " << i;
    }
  }
}

TEST_P(ComplexTest, Products_HaveTheirClosedForm) {
  run([&](Runtime& runtime) {
    expect_products<float>(runtime, input, product);
    expect_products<double>(runtime, input, product);
  });
}

TEST_P(ComplexTest, RanksThatHaveJoined_MultiplyByOne) {
  run([&](Runtime& runtime) {
    if (runtime.rank() == runtime.size() - 1) {
      join();
      return;
    }
    joins::wait_until_joined("the last");
    std::vector<std::complex<double>> values = inputs<double>(runtime.rank(), 37, input);
    allreduce(view_of(values), view_of(values), {.op = ReduceOp::Product, .prescale = 3});
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], product(runtime.size() - 1, i, 3)) << "element " << i;
    }
    join();
  });
}

TEST(ComplexOnGpuTest, Products_AreRefused) {
  run_runtimes({.size = 2, .network = {.gpus_per_rank = 1}}, [](Runtime&) {
    Tensor tensor(8, DType::Complex64);
    const std::string text = text_thrown_by<InvalidArgument>(
        [&] { allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Product, .name = "x"}); });
    expect_contains(text, "Product of complex64 runs on CPU memory only");
  });
}

}  // namespace kolo::test::complex_test
