#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/tensor_view.hpp"

namespace kolo::c10d_backend {

/// Throws InvalidArgument, naming the operation, unless the tensor is strided, on the CPU, and no
/// lazy conjugate.
void require_usable(const at::Tensor& tensor, const char* operation);
/// Throws InvalidArgument unless both have one dtype.
void require_same_dtype(const at::Tensor& input, const at::Tensor& output, const char* operation);
/// Throws InvalidArgument unless there is one tensor.
at::Tensor& the_only(std::vector<at::Tensor>& tensors, const char* operation);
/// Throws InvalidArgument unless there is one tensor for each of `size` ranks.
void require_count(std::size_t count, int size, const char* operation);

/// The memory of a contiguous tensor as one row of elements, for data that only move: as bytes, if
/// Kolo has no such dtype.
TensorView view_to_move(const at::Tensor& tensor);
/// The same for a reduction. Throws InvalidArgument for dtypes that Kolo does not have.
TensorView view_to_reduce(const at::Tensor& tensor, const char* operation);

/// Contiguous memory for the tensors of an operation: their own, where that is contiguous. Elements
/// are in the order of their indices, so that ranks may have other strides.
class Memory {
 public:
  explicit Memory(const char* operation) : operation_(operation) {}

  at::Tensor input(const at::Tensor& tensor) const;
  /// copy_out() gives the tensor what was written there.
  at::Tensor output(const at::Tensor& tensor);
  at::Tensor in_place(const at::Tensor& tensor);
  /// The tensors of a list, one after another.
  at::Tensor inputs(const std::vector<at::Tensor>& tensors) const;
  at::Tensor outputs(const std::vector<at::Tensor>& tensors);

  /// Null if there is nothing to copy.
  std::function<void()> copy_out() const;

 private:
  at::Tensor flat(const std::vector<at::Tensor>& tensors) const;

  const char* operation_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // from, to
};

}  // namespace kolo::c10d_backend
