#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/tensor_view.hpp"

namespace kolo::c10d_backend {

/// From, to: what an operation wrote, and the tensor that gets it.
using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

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

/// Contiguous memory for the tensors of an operation: their own, where that can be used. Elements
/// are in the order of their indices, so that ranks may have other strides. Throws InvalidArgument,
/// naming the operation, unless all tensors are strided, on one device, and no lazy conjugates.
class Memory {
 public:
  enum class Place { OfTensors, Cpu };  // Kolo's messages are in CPU memory

  explicit Memory(const char* operation, Place place = Place::OfTensors)
      : operation_(operation), place_(place) {}

  at::Tensor input(const at::Tensor& tensor);
  /// copies() gives the tensor what was written there.
  at::Tensor output(const at::Tensor& tensor);
  at::Tensor in_place(const at::Tensor& tensor);
  /// The tensors of a list, one after another.
  at::Tensor inputs(const std::vector<at::Tensor>& tensors);
  at::Tensor outputs(const std::vector<at::Tensor>& tensors);
  /// Gives `to` what `from` has, once the operation has ended.
  void copy(const at::Tensor& from, const at::Tensor& to);
  /// Room for what nobody reads.
  at::Tensor unread(const at::Tensor& like);

  /// All of this memory, also what is added later.
  std::shared_ptr<std::vector<at::Tensor>> owner() const { return used_; }
  const Copies& copies() const { return copies_; }
  Place place() const { return place_; }
  at::Device device() const { return device_.value_or(at::kCPU); }

 private:
  void require_usable(const at::Tensor& tensor);
  at::Tensor use(at::Tensor memory);
  at::Tensor flat(const std::vector<at::Tensor>& tensors);

  const char* operation_;
  const Place place_;
  const std::shared_ptr<std::vector<at::Tensor>> used_ =
      std::make_shared<std::vector<at::Tensor>>();
  Copies copies_;
  std::optional<at::Device> device_;
};

}  // namespace kolo::c10d_backend
