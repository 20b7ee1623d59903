#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "contract/reference.hpp"
#include "kolo/collectives.hpp"
#include "support/gpu/tensor_place.hpp"

namespace kolo::test {

/// A tensor with its own memory, at the place of this thread's tensors.
class Tensor {
 public:
  Tensor(DType dtype, std::vector<std::int64_t> shape)
      : view_{nullptr, dtype, std::move(shape), {}} {
    memory_.resize(view_.size_bytes() + 1);  // an empty tensor needs an address, too
    view_.data = memory_.data();
    view_.device = memory_.device();
  }
  explicit Tensor(std::int64_t count, DType dtype = DType::Float32) : Tensor(dtype, {count}) {}
  Tensor(const Tensor&) = delete;  // views refer to it
  Tensor& operator=(const Tensor&) = delete;
  Tensor(Tensor&& other) noexcept = default;

  const TensorView& view() const { return view_; }
  std::size_t count() const { return view_.count(); }
  double at(std::size_t index) const { return value_at(view_.dtype, memory_.look(), index); }

  template <class Formula>
  void fill(Formula formula) {
    const std::size_t total = count();
    std::byte* const values = memory_.host();
    for (std::size_t i = 0; i < total; ++i) set_value(view_.dtype, values, i, formula(i));
    memory_.put();
  }

  template <class Formula>
  void expect(Formula formula, const std::string& what, double relative_tolerance = 0) const {
    const std::byte* const values = memory_.look();
    const std::size_t total = count();
    for (std::size_t i = 0; i < total; ++i) {
      const double expected = formula(i);
      const double value = value_at(view_.dtype, values, i);
      if (value == expected) continue;  // saves most of an assertion's time
      ASSERT_NEAR(value, expected,
                  relative_tolerance * std::max(std::fabs(expected), smallest_scale()))
          << what << ", element " << i << " of " << total;
    }
  }

 private:
  /// On GPUs an average is a sum of scaled elements; if they cancel, their rounding errors remain.
  double smallest_scale() const { return memory_.device() == Device{} ? 0.0 : 1.0; }

  PlacedMemory memory_;
  TensorView view_;
};

/// A tensor in the CPU's memory, wherever this thread's tensors are.
inline Tensor on_cpu(DType dtype, std::vector<std::int64_t> shape) {
  TensorPlace* const place = std::exchange(tensor_place, nullptr);
  Tensor tensor(dtype, std::move(shape));
  tensor_place = place;
  return tensor;
}

/// Element `i` of `rank`'s input number `salt`: small, so that sums of seven fit an int8.
double input_value(int rank, std::size_t i, std::size_t salt = 0);
double input_sum(int size, std::size_t i, std::size_t salt = 0);

/// Checks an all-reduce of `count` floats, to show that a process set works.
inline void expect_sum_works(ProcessSet& set, const std::string& name, std::int64_t count = 5) {
  Tensor tensor(count);
  tensor.fill([&](std::size_t i) { return input_value(set.rank(), i); });
  allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = name, .process_set = &set});
  tensor.expect([&](std::size_t i) { return input_sum(set.size(), i); }, name);
}

inline void expect_sum_works(Runtime& runtime, const std::string& name, std::int64_t count = 5) {
  expect_sum_works(runtime.world(), name, count);
}

/// Memory for rows from all ranks, with the row counts that the callback received.
struct Rows {
  DType dtype = DType::Float32;
  std::int64_t row_elements = 1;
  std::vector<std::int64_t> counts{};
  PlacedMemory memory{};

  AllocateRows allocator() {
    return [this](const std::vector<std::int64_t>& rows) -> void* {
      counts = rows;
      memory.resize(element_count() * size_of(dtype) + 1);  // an empty result needs an address, too
      return memory.data();
    };
  }
  std::size_t element_count() const {
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    return static_cast<std::size_t>(total * row_elements);
  }
  double at(std::size_t index) const { return value_at(dtype, memory.look(), index); }
};

}  // namespace kolo::test
