#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "kolo/shared_buffer.hpp"
#include "kolo/tensor_view.hpp"
#include "kolo/torch/tensor_types.hpp"

namespace kolo::train {

/// The memory of tensors, and tensors over memory.

/// The reason why collectives do not support the tensor, for an error text; empty if they do: it
/// must be strided, on the CPU or a CUDA device, of a supported dtype, and have elements.
std::string problem_with(const at::Tensor& tensor);
/// The reason why collectives do not support tensors of this layout, device or dtype; empty if they
/// do. Deferred tensors are not a problem.
std::string problem_with_type(const at::Tensor& tensor);
/// The first problem in a group, with the tensor's index; empty if there is none.
std::string problem_with(const std::vector<at::Tensor>& tensors);

/// The first problem in a group that is written to in place, which elements that share memory and
/// results of autograd cannot be; empty if there is none.
std::string in_place_problem_with(const std::vector<at::Tensor>& tensors);

using kolo::device_of;
using kolo::dtype_of;
using kolo::scalar_type_of;
/// The dtype of a tensor whose type is supported.
DType dtype_of(const at::Tensor& tensor);

/// The memory of a contiguous tensor, which must stay alive. Throws InvalidArgument, naming
/// `operation`, if the tensor has a problem.
TensorView view_of(const at::Tensor& tensor, std::string_view operation);
/// The dtype, shape and device of a tensor, without its memory: a parameter that is gathered on use
/// may have none. Throws as view_of().
TensorView extent_of(const at::Tensor& tensor, std::string_view operation);

/// Copies bytes of a contiguous tensor on any device, from `offset` on, to `place`. Blocks.
void copy_bytes(const at::Tensor& tensor, std::size_t offset, std::span<std::byte> place);

/// Allocates zeroed memory on `device` for tensors that collectives work on in place: on the CPU
/// the ranks share it where possible, on a GPU it is this rank's own. Collective on the CPU;
/// `options` must have a name.
SharedBuffer make_flat_memory(std::size_t size_bytes, const at::Device& device,
                              const OperationOptions& options);

/// A tensor of `shape` and `type` at `offset_bytes` of the memory, which it keeps alive. Not an
/// autograd view: zero_grad detaches gradients in place, which views do not allow.
at::Tensor tensor_over(const SharedBuffer& memory, std::size_t offset_bytes, at::IntArrayRef shape,
                       const at::TensorOptions& type);

/// The first `size_bytes` of a buffer as a tensor's storage, from which shared_memory_of gets the
/// buffer.
c10::Storage storage_over(SharedBuffer buffer, std::size_t size_bytes);
/// The buffer of a whole, contiguous tensor made by shared_empty; null for any other tensor. Lives
/// as long as the tensor's storage.
const SharedBuffer* shared_memory_of(const at::Tensor& tensor);
/// The buffer of a group's only tensor; null for larger groups, which are treated as ordinary ones.
const SharedBuffer* shared_memory_of(const std::vector<at::Tensor>& tensors);

// Elements of an expanded tensor share memory.

/// Throws InvalidArgument if `values`, for the tensor `name`, differ where its elements share
/// memory.
void require_alike_where_shared(const std::string& name, const at::Tensor& own,
                                const at::Tensor& values);
/// Copies values to a tensor, which may be expanded.
void copy_values(const at::Tensor& own, const at::Tensor& values);

}  // namespace kolo::train
