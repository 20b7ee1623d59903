#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "train/buckets/bucket_plan.hpp"
#include "train/wrapped/wrapped_optimizer.hpp"

namespace kolo::train {

struct ReducedParameter {
  at::Tensor tensor;
  std::string name;
  int group = PlannedParameter::kNoGroup;
  std::size_t place = 0;      ///< index in the model
  bool is_compressed = true;  ///< its gradient, if gradients are compressed
  bool is_whole = false;      ///< if sharded, on one rank, which steps the whole tensor
};

std::vector<at::Tensor> tensors_of(const std::vector<ReducedParameter>& parameters);

/// Detects that a program has moved parameters to other memory, has written to parameters that
/// ranks share, or has stepped the wrapped optimizer itself.
class ParameterWatch {
 public:
  /// `parameters` outlive this.
  explicit ParameterWatch(const std::vector<ReducedParameter>& parameters);

  /// The parameters are sharded: from now on their elements must not move.
  void pin();

  /// Throws InvalidArgument if a parameter has another dtype, device or shape than at construction,
  /// or has moved since pin().
  void require_in_place() const;
  /// From now on only updates may write to the parameters, since ranks share one copy of them.
  void refuse_writes();
  /// Throws InvalidArgument if a parameter was written since refuse_writes(), as its version shows.
  /// Updates write through leaves, which have versions of their own.
  void require_unwritten() const;
  /// Throws InvalidArgument if `optimizer` has state of a whole parameter after pin(): only its own
  /// step() or load() creates that.
  void require_no_whole_state(const WrappedOptimizer& optimizer) const;

  /// The address of the elements, or of the storage if its elements are not always in memory.
  static const void* address_of(const at::Tensor& parameter);
  /// Throw the errors for a parameter that has moved, and for one that was written.
  [[noreturn]] static void refuse_move(const std::string& name);
  [[noreturn]] static void refuse_write(const std::string& name);

  /// Samples some elements, which `has_changed` compares. LibTorch's SGD updates parameters without
  /// incrementing their versions.
  void remember(std::size_t index) { remembered_[index] = sample(parameters_[index].tensor); }
  bool has_changed(std::size_t index) const {
    return remembered_[index] != sample(parameters_[index].tensor);
  }

 private:
  using Element = std::array<std::byte, 16>;  // the widest type is complex128
  using Sample = std::array<Element, 3>;
  static Sample sample(const at::Tensor& parameter);

  struct Place {
    at::TensorOptions type;
    std::vector<std::int64_t> shape;
    const void* address = nullptr;  // see address_of(); once pinned
  };

  const std::vector<ReducedParameter>& parameters_;
  std::vector<Place> places_;
  std::vector<Sample> remembered_;
  std::vector<std::uint32_t> versions_;  // empty: writes are allowed
  bool is_pinned_ = false;
};

}  // namespace kolo::train
