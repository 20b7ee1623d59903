#pragma once

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
#include "support/sanitizers.hpp"

namespace kolo::test::disagreement {

using Shape = std::vector<std::int64_t>;

/// One rank's call under the name "x".
using Call = std::function<Handle(const Tensor&)>;

inline TensorView view_of(const Tensor& tensor, Shape shape, DType dtype = DType::Float32) {
  TensorView view = tensor.view();
  view.shape = std::move(shape);
  view.dtype = dtype;
  return view;
}

inline Call reduce(Shape shape, AllreduceOptions options = {}, DType dtype = DType::Float32) {
  options.name = "x";
  return [=](const Tensor& tensor) {
    const TensorView view = view_of(tensor, shape, dtype);
    return allreduce_async(view, view, options);
  };
}

inline Call scatter(Shape shape, AllreduceOptions options = {}) {
  options.name = "x";
  return [=](const Tensor& tensor) {
    TensorView output = view_of(tensor, shape);
    output.data = static_cast<std::byte*>(output.data) + output.size_bytes();
    output.shape[0] = scattered_rows(shape[0], size(), rank());
    return reduce_scatter_async(view_of(tensor, shape), output, options);
  };
}

inline Call reduce_group(std::vector<std::pair<Shape, DType>> members) {
  return [=](const Tensor& tensor) {
    std::vector<InputOutput> tensors;
    auto* memory = static_cast<std::byte*>(tensor.view().data);
    for (const auto& [shape, dtype] : members) {
      TensorView view = view_of(tensor, shape, dtype);
      view.data = memory;
      memory += view.size_bytes();
      tensors.push_back({view, view});
    }
    return grouped_allreduce_async(tensors, {.name = "x"});
  };
}

inline Call broadcast_from(int root) {
  return [=](const Tensor& tensor) {
    return broadcast_async(view_of(tensor, {5}), root, {.name = "x"});
  };
}

/// Memory for rows, which lives as long as the operation.
struct Place {
  std::shared_ptr<std::vector<std::byte>> memory = std::make_shared<std::vector<std::byte>>(65536);
  AllocateRows allocator() const {
    return [memory = memory](const std::vector<std::int64_t>&) -> void* { return memory->data(); };
  }
};

inline Call gather(Shape shape, DType dtype = DType::Float32) {
  return [=](const Tensor& tensor) {
    const Place place;
    return allgather_async(view_of(tensor, shape, dtype), place.allocator(),
                           {.name = "x", .keep_alive = place.memory});
  };
}

inline Call all_to_all(Shape shape) {
  return [=](const Tensor& tensor) {
    const Place place;
    std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 0);
    splits.front() = shape[0];
    return alltoall_async(view_of(tensor, shape), splits, place.allocator(),
                          {.name = "x", .keep_alive = place.memory});
  };
}

inline Call barrier_call(std::string purpose = "") {
  return [=](const Tensor&) { return barrier_async({.name = "x", .purpose = purpose}); };
}

inline void combine_nothing(DType, const void*, void*, std::size_t) {}
inline void fill_nothing(DType, void*, std::size_t) {}

/// Custom reductions that all ranks have.
inline std::vector<CustomReduction> two_reductions() {
  return {{"first", combine_nothing, fill_nothing}, {"second", combine_nothing, fill_nothing}};
}

/// Worlds of 2, 3 and 4 ranks, with shared memory and with messages; under sanitizers, one.
inline std::vector<Setting> some_worlds() {
  const auto world = [](int size, bool has_shared_memory) {
    Setting setting{.size = size, .network = {.has_shared_memory = has_shared_memory}};
    setting.config.tuning.tree_width = 2;
    return setting;
  };
  if (kIsSanitized) return {world(3, false)};
  return {world(2, true), world(3, false), world(4, true)};
}

/// Other operations in flight.
class Traffic {
 public:
  explicit Traffic(Runtime& runtime) : runtime_(runtime) {
    for (std::size_t t = 0; t < kTensors; ++t) {
      tensors_.emplace_back(static_cast<std::int64_t>(10 * t + 1));
    }
  }
  /// Submits tensors `begin` to `end` - 1.
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

/// All ranks but `odd` make the usual call; `expect` checks each rank's result; later operations
/// succeed.
inline void disagree(Runtime& runtime, const Call& usual, const Call& other, int odd,
                     bool has_traffic, const Expect& expect) {
  const Tensor tensor(64, DType::Float64);
  Traffic traffic(runtime);
  if (has_traffic) traffic.submit(0, Traffic::kTensors / 2);
  Handle handle = runtime.rank() == odd ? other(tensor) : usual(tensor);
  if (has_traffic) traffic.submit(Traffic::kTensors / 2, Traffic::kTensors);
  expect(runtime, handle, odd);
  if (has_traffic) traffic.expect_sums();
  expect_sum_works(runtime, "y");
}

/// The first time, in the steady state, and when both calls are known; alone and with traffic.
inline void disagree_in_every_way(const Call& usual, const Call& other, bool other_runs,
                                  const Expect& expect) {
  for (const Setting& setting : some_worlds()) {
    for (const bool has_traffic : {false, true}) {
      run_with_reductions(setting, two_reductions(), [&](Runtime& runtime) {
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

}  // namespace kolo::test::disagreement
