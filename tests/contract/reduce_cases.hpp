#pragma once

// Reductions that the contracts of all-reduce and reduce-scatter share.

#include <cstdint>
#include <vector>

#include "contract/reduce_case.hpp"
#include "ops/steps/reduction_plan.hpp"

namespace kolo::test {

inline std::vector<ReduceCase> every_type_and_operation() {
  std::vector<ReduceCase> cases;
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kAllOps) {
      if (!is_defined(dtype, op)) continue;
      cases.push_back({dtype, {op}, 203, 128, false, 1});
      cases.push_back({dtype, {op}, 203, 128, true, 1});
      cases.push_back({dtype, {op, 0.5, 1.5}, 203, 64, true, 0});
      cases.push_back({dtype, {op, 1.0, 1.0 / 3}, 57, 128, false, 3});
    }
  }
  return cases;
}

/// A rank-ordered algorithm must give the same bits for all of these.
inline std::vector<ReduceCase> every_chunking_and_offset() {
  std::vector<ReduceCase> cases;
  for (const DType dtype : {DType::Int8, DType::BFloat16, DType::Float16, DType::Float64}) {
    for (const std::size_t segment_bytes : {64u, 128u, 320u, 448u, 1024u, 65536u}) {
      for (const std::size_t offset : {1u, 6u}) {
        cases.push_back(
            {.dtype = dtype, .count = 731, .segment_bytes = segment_bytes, .offset = offset});
      }
    }
  }
  return cases;
}

/// Reductions whose results depend on the order in which ranks are combined.
inline std::vector<ReduceCase> every_timing() {
  return {{.dtype = DType::Float32, .count = 301},
          {.dtype = DType::Float16, .count = 77, .segment_bytes = 128, .in_place = true},
          {.dtype = DType::Float64, .reduction = {ReduceOp::Product}, .count = 64},
          {.dtype = DType::Complex64, .reduction = {ReduceOp::Product}, .count = 87}};
}

/// The mean of finite numbers is finite even if their sum is not. A sum of bfloat16 overflows
/// float32, too, so inputs are always divided first; those of float16 only if partial sums are
/// sent.
inline std::vector<ReduceCase> average_of_large_halves(bool rank_ordered, int size) {
  std::vector<ReduceCase> cases;
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    const bool is_divided_before = dtype == DType::BFloat16 || !rank_ordered;
    const Reduction mean = is_divided_before
                               ? Reduction{.op = ReduceOp::Sum, .prescale = 1.0 / size}
                               : Reduction{.op = ReduceOp::Sum, .postscale = 1.0 / size};
    EXPECT_EQ(ops::plan_reduction(dtype, ReduceOp::Average, 1, 1, rank_ordered, size).reduction,
              mean);
    cases.push_back({.dtype = dtype, .reduction = mean, .count = 70, .values = Values::Large});
  }
  return cases;
}

inline std::vector<ReduceCase> not_a_number() {
  std::vector<ReduceCase> cases;
  for (const DType dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64}) {
    for (const ReduceOp op : kAllOps) {
      if (!is_defined(dtype, op)) continue;
      cases.push_back(
          {.dtype = dtype, .reduction = {op}, .count = 40, .values = Values::NotANumber});
    }
  }
  return cases;
}

/// For Int32; the order does not matter.
inline constexpr CustomReduction kExclusiveOr{
    "exclusive or",
    [](DType, const void* next, void* accumulator, std::size_t count) {
      const auto* from = static_cast<const std::uint32_t*>(next);
      auto* to = static_cast<std::uint32_t*>(accumulator);
      for (std::size_t i = 0; i < count; ++i) to[i] ^= from[i];
    },
    [](DType, void* values, std::size_t count) {
      std::fill_n(static_cast<std::uint32_t*>(values), count, 0u);
    }};

/// For Int32: the last odd number, else the first number. Associative, but not commutative.
inline constexpr CustomReduction kLastOdd{
    "last odd",
    [](DType, const void* next, void* accumulator, std::size_t count) {
      const auto* from = static_cast<const std::int32_t*>(next);
      auto* to = static_cast<std::int32_t*>(accumulator);
      for (std::size_t i = 0; i < count; ++i) {
        if (from[i] % 2 != 0) to[i] = from[i];
      }
    },
    [](DType, void* values, std::size_t count) {
      std::fill_n(static_cast<std::int32_t*>(values), count, 0);
    }};

inline std::vector<ReduceCase> custom_reductions(bool rank_ordered) {
  std::vector<ReduceCase> cases;
  for (const CustomReduction* custom : {&kExclusiveOr, &kLastOdd}) {
    if (custom == &kLastOdd && !rank_ordered) continue;  // it combines in another order
    for (const std::size_t count : {std::size_t{0}, std::size_t{5}, std::size_t{333}}) {
      for (const bool in_place : {false, true}) {
        cases.push_back({.dtype = DType::Int32,
                         .reduction = {.op = ReduceOp::Custom, .custom = custom},
                         .count = count,
                         .segment_bytes = 192,
                         .in_place = in_place});
      }
    }
  }
  return cases;
}

}  // namespace kolo::test
