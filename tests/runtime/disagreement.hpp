#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

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

/// One rank makes another call, the first time and when the usual call is known. `expect` checks
/// each rank's result; later operations succeed. Random programs do so in every world.
inline void disagree(const Call& usual, const Call& other,
                     const std::function<void(Handle&, int odd)>& expect) {
  run_with_reductions({.size = 3}, two_reductions(), [&](Runtime& runtime) {
    const Tensor tensor(64, DType::Float64);
    for (const int odd : {2, 0}) {
      Handle handle = runtime.rank() == odd ? other(tensor) : usual(tensor);
      expect(handle, odd);
      expect_sum_works(runtime, "y");
      usual(tensor).wait();
    }
  });
}

}  // namespace kolo::test::disagreement
