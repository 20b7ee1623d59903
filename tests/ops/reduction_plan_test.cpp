#include "ops/steps/reduction_plan.hpp"

#include <array>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "base/convert.hpp"
#include "contract/reference.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/kernels.hpp"

namespace kolo::ops::reduction_plan_test {

constexpr DType kIntegers[] = {DType::UInt8, DType::Int8, DType::Int16, DType::Int32, DType::Int64};

/// Executes a plan on the values of `size` ranks.
double run_plan(DType dtype, ReduceOp op, double prescale, double postscale, bool rank_ordered,
                const std::vector<double>& values) {
  const int size = static_cast<int>(values.size());
  const ReductionPlan plan = plan_reduction(dtype, op, prescale, postscale, rank_ordered, size);
  std::vector<std::array<std::byte, 8>> inputs(values.size());
  std::vector<const std::byte*> pointers;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::array<std::byte, 8> element{};
    test::set_value(dtype, element.data(), 0, values[i]);
    if (plan.wire == dtype) {
      inputs[i] = element;
    } else {
      base::convert(dtype, element.data(), plan.wire, inputs[i].data(), 1);
    }
    pointers.push_back(inputs[i].data());
  }
  alignas(8) std::array<std::byte, 8> result{};
  const std::array<std::byte*, 1> outputs{result.data()};
  combine(plan.wire, plan.reduction, pointers, outputs, 1);
  if (plan.divisor != 1) divide({reinterpret_cast<std::int64_t*>(result.data()), 1}, plan.divisor);
  if (plan.wire == dtype) return test::value_at(dtype, result.data(), 0);
  std::array<std::byte, 8> narrow{};
  base::convert(plan.wire, result.data(), dtype, narrow.data(), 1);
  return test::value_at(dtype, narrow.data(), 0);
}

TEST(ReductionPlanTest, OtherOperations_RunAsTheyAre) {
  for (const DType dtype : test::kAllDTypes) {
    for (const ReduceOp op : test::kAllOps) {
      if (!test::is_defined(dtype, op)) continue;
      const ReductionPlan expected{dtype, {op, 0.5, 3.0}, 1};
      EXPECT_EQ(plan_reduction(dtype, op, 0.5, 3.0, true, 4), expected);
      EXPECT_EQ(plan_reduction(dtype, op, 0.5, 3.0, false, 4), expected);
    }
  }
}

TEST(ReductionPlanTest, IntegerAverageOfEqualValues_IsThatValue) {
  for (const DType dtype : kIntegers) {
    for (const std::size_t size : {1u, 2u, 3u, 7u, 49u, 98u, 103u}) {
      for (const double value : {0.0, 1.0, 100.0, 127.0, dtype == DType::UInt8 ? 255.0 : -128.0}) {
        const std::vector<double> values(size, value);
        EXPECT_EQ(run_plan(dtype, ReduceOp::Average, 1, 1, true, values), value)
            << name_of(dtype) << " on " << size;
      }
    }
  }
}

TEST(ReductionPlanTest, IntegerAverage_TruncatesTowardZero) {
  EXPECT_EQ(run_plan(DType::Int8, ReduceOp::Average, 1, 1, false, {1, 2, 2}), 1);
  EXPECT_EQ(run_plan(DType::Int8, ReduceOp::Average, 1, 1, false, {-1, -2, -2}), -1);
  EXPECT_EQ(run_plan(DType::UInt8, ReduceOp::Average, 1, 1, false, {255, 255, 252}), 254);
}

TEST(ReductionPlanTest, UserScales_ApplyBesides) {
  for (const bool rank_ordered : {false, true}) {
    for (const DType dtype : {DType::Int16, DType::Int64, DType::Float16, DType::BFloat16,
                              DType::Float32, DType::Float64}) {
      // 4 * (0.5 * 6 + 0.5 * 10) / 2; all types hold these numbers exactly.
      EXPECT_EQ(run_plan(dtype, ReduceOp::Average, 0.5, 4, rank_ordered, {6, 10}), 16)
          << name_of(dtype);
    }
  }
  // The postscale precedes the division, so nothing is lost: 3 * (1 + 2) / 2.
  EXPECT_EQ(run_plan(DType::Int32, ReduceOp::Average, 1, 3, true, {1, 2}), 4);
}

TEST(ReductionPlanTest, AverageOfLargeHalves_StaysFinite) {
  for (const bool rank_ordered : {false, true}) {
    EXPECT_EQ(run_plan(DType::Float16, ReduceOp::Average, 1, 1, rank_ordered, {60000, 60000}),
              60000);
    EXPECT_EQ(run_plan(DType::BFloat16, ReduceOp::Average, 1, 1, rank_ordered, {0x1p127, 0x1p127}),
              0x1p127);
  }
  // Partial sums in 16 bits need the prescale; without partial sums it only costs precision.
  EXPECT_EQ(plan_reduction(DType::Float16, ReduceOp::Average, 1, 1, false, 4).reduction,
            (Reduction{ReduceOp::Sum, 0.25, 1}));
  EXPECT_EQ(plan_reduction(DType::Float16, ReduceOp::Average, 1, 1, true, 4).reduction,
            (Reduction{ReduceOp::Sum, 1, 0.25}));
}

TEST(ReductionPlanTest, Adasum_KnowsFloatingAndComplexTypesOnly) {
  for (const DType dtype : test::kAllDTypes) {
    if (is_floating(dtype) || is_complex(dtype)) {
      const ReductionPlan expected{dtype, {ReduceOp::Adasum, 0.5, 3.0}, 1};
      EXPECT_EQ(plan_reduction(dtype, ReduceOp::Adasum, 0.5, 3.0, false, 4), expected);
    } else {
      EXPECT_THROW(plan_reduction(dtype, ReduceOp::Adasum, 1, 1, false, 4), InvalidArgument);
    }
  }
}

TEST(ReductionPlanTest, Custom_KnowsEveryTypeAndNoScales) {
  for (const DType dtype : test::kAllDTypes) {
    const ReductionPlan expected{dtype, {ReduceOp::Custom}, 1};
    EXPECT_EQ(plan_reduction(dtype, ReduceOp::Custom, 1, 1, false, 4), expected);
    EXPECT_THROW(plan_reduction(dtype, ReduceOp::Custom, 0.5, 1, false, 4), InvalidArgument);
    EXPECT_THROW(plan_reduction(dtype, ReduceOp::Custom, 1, 2, true, 4), InvalidArgument);
  }
}

TEST(ReductionPlanTest, ComplexTypes_HaveMeansAndNoOrder) {
  for (const DType dtype : {DType::Complex64, DType::Complex128}) {
    for (const bool rank_ordered : {false, true}) {
      const ReductionPlan mean{dtype, {ReduceOp::Sum, 0.5, 3.0 / 4}, 1};
      EXPECT_EQ(plan_reduction(dtype, ReduceOp::Average, 0.5, 3, rank_ordered, 4), mean);
    }
    for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
      EXPECT_THROW(plan_reduction(dtype, op, 1, 1, true, 2), InvalidArgument);
    }
  }
}

TEST(ReductionPlanTest, Bool_KnowsMinAndMaxOnly) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum, ReduceOp::Product}) {
    EXPECT_THROW(plan_reduction(DType::Bool, op, 1, 1, true, 2), InvalidArgument);
  }
  EXPECT_EQ(run_plan(DType::Bool, ReduceOp::Min, 1, 1, true, {1, 0, 1}), 0);
  EXPECT_EQ(run_plan(DType::Bool, ReduceOp::Max, 1, 1, true, {0, 0, 1}), 1);
}

}  // namespace kolo::ops::reduction_plan_test
