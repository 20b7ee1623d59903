#pragma once

#include <chrono>

#include <ATen/core/Tensor.h>

#include "kolo/collectives.hpp"
#include "kolo/handle.hpp"

/// Collectives on at::Tensor. What kolo/collectives.hpp says of names, blocking and errors holds
/// here too.
///
/// Tensors: strided, on the CPU, of uint8, int8, int16, int32, int64, float16, bfloat16, float32,
/// float64 or bool, of any shape, contiguous or not, with zero elements too; anything else throws
/// InvalidArgument. They take no part in autograd. Operations keep their tensors alive until they
/// have ended.
namespace kolo {

/// A Handle to an operation on tensors, and its result.
class [[nodiscard]] TensorHandle {
 public:
  TensorHandle() = default;
  /// `copy_to`, where defined, receives the result once it is there: the caller's own tensor, where
  /// the operation had to work on a contiguous copy.
  TensorHandle(Handle handle, at::Tensor output, at::Tensor copy_to = {});

  /// As those of Handle.
  bool is_ready() const { return handle_.is_ready(); }
  void wait();
  bool wait_for(std::chrono::nanoseconds duration);

  /// Waits, and returns the result: of an in-place operation the caller's tensor.
  at::Tensor result();

 private:
  void deliver();

  Handle handle_;
  at::Tensor output_;
  at::Tensor copy_to_;
};

/// Combines `tensor` [...] of all ranks element by element. The plain forms return a new tensor of
/// its shape, those with a trailing underscore change `tensor` on every rank.
at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options = {});
at::Tensor& allreduce_(at::Tensor& tensor, const AllreduceOptions& options = {});
TensorHandle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options = {});
TensorHandle allreduce_async_(at::Tensor& tensor, const AllreduceOptions& options = {});

/// Concatenates `tensor` [rows, ...] of all ranks along dimension 0, in the order of ranks. Rows may
/// differ between ranks, the other dimensions must agree. The result has the sum of all
/// rows.
at::Tensor allgather(const at::Tensor& tensor, const OperationOptions& options = {});
TensorHandle allgather_async(const at::Tensor& tensor, const OperationOptions& options = {});

/// Copies `tensor` [...] of the world rank `root`, which all ranks must give alike, to all ranks;
/// the others supply a tensor of the same shape and dtype.
at::Tensor broadcast(const at::Tensor& tensor, int root, const OperationOptions& options = {});
at::Tensor& broadcast_(at::Tensor& tensor, int root, const OperationOptions& options = {});
TensorHandle broadcast_async(const at::Tensor& tensor, int root,
                             const OperationOptions& options = {});
TensorHandle broadcast_async_(at::Tensor& tensor, int root, const OperationOptions& options = {});

}  // namespace kolo
