#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/collectives.hpp"
#include "kolo/torch/tensor_handle.hpp"

#pragma GCC visibility push(default)
/// Collectives on at::Tensor. Names, groups, blocking and errors are those of kolo/collectives.hpp.
///
/// Tensors: dense, on the CPU or a CUDA device, of uint8, int8, int16, int32, int64, float16,
/// bfloat16, float32, float64, bool, complex64 or complex128, of any shape, including empty and
/// non-contiguous ones; anything else ends the operation with InvalidArgument on all ranks. An
/// operation keeps its tensors alive until it has ended.
///
/// Forms: plain ones return new, contiguous tensors. Forms with a trailing underscore work in
/// place: the tensors may change at any time until the caller has waited, and hold the result then.
/// `async` forms return a handle at once; all others block.
///
/// On a CUDA device, an operation runs after the work on the current stream when it is called, and
/// before the work that the waiting thread puts on its current stream afterwards; no thread waits
/// for the GPU. OperationOptions::stream is ignored.
///
/// Autograd: the forms that return new tensors, async ones too, are differentiable if gradients are
/// enabled at the call and a tensor requires them. Their backward communicates under the
/// operation's name plus ".gradient", so every rank must run it alike. With losses L on n ranks it
/// computes, as in Horovod, the gradient of
///   allreduce       the sum of L, with Sum, Average and scales
///   allgather       the mean of L, or the sum (GatherGradient)
///   broadcast       the mean of L, on the root; zero elsewhere
///   alltoall        the sum of L
///   reduce_scatter  n times the sum of L
/// For Min, Max, Product, Adasum and Custom, backward throws InvalidArgument. Gradients are
/// differentiable themselves; those of complex tensors are conjugate, as in LibTorch. In place, a
/// parameter (a leaf) just gets a new value; a tensor that was computed from tensors that require
/// gradients ends the operation with InvalidArgument, except under torch::NoGradGuard, and so does
/// one that requires gradients in sparse_allreduce.
namespace kolo {

/// Combines tensors of all ranks element by element; every rank gets the result.
/// @param tensor [...], of the same shape and dtype on all ranks
at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options = {});
at::Tensor& allreduce_(at::Tensor& tensor, const AllreduceOptions& options = {});
TensorHandle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options = {});
TensorHandle allreduce_async_(at::Tensor& tensor, const AllreduceOptions& options = {});

std::vector<at::Tensor> grouped_allreduce(const std::vector<at::Tensor>& tensors,
                                          const AllreduceOptions& options = {});
void grouped_allreduce_(const std::vector<at::Tensor>& tensors,
                        const AllreduceOptions& options = {});
TensorsHandle grouped_allreduce_async(const std::vector<at::Tensor>& tensors,
                                      const AllreduceOptions& options = {});
TensorsHandle grouped_allreduce_async_(const std::vector<at::Tensor>& tensors,
                                       const AllreduceOptions& options = {});

/// Combines tensors of all ranks element by element and scatters the result's rows.
/// @param tensor [rows, ...], of the same shape and dtype on all ranks
/// @return this rank's rows of the result: [scattered_rows(rows, size, rank), ...]
at::Tensor reduce_scatter(const at::Tensor& tensor, const AllreduceOptions& options = {});
TensorHandle reduce_scatter_async(const at::Tensor& tensor, const AllreduceOptions& options = {});

std::vector<at::Tensor> grouped_reduce_scatter(const std::vector<at::Tensor>& tensors,
                                               const AllreduceOptions& options = {});
TensorsHandle grouped_reduce_scatter_async(const std::vector<at::Tensor>& tensors,
                                           const AllreduceOptions& options = {});

/// Adds up or averages sparse tensors of all ranks.
/// @param tensor COO, of the same shape and dtype on all ranks; coalesced before it is sent
/// @param options Sum, and for floating and complex dtypes Average and scales; no compression
/// @return the entries of all ranks in rank order, not coalesced
at::Tensor sparse_allreduce(const at::Tensor& tensor, const AllreduceOptions& options = {});
TensorHandle sparse_allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options = {});

/// How the backward of allgather combines all ranks' gradients of one rank's rows.
enum class GatherGradient { Average, Sum };

struct GatherOptions {
  std::string name{};
  std::optional<std::chrono::nanoseconds> timeout{};
  ProcessSet* process_set = nullptr;
  GatherGradient gradient = GatherGradient::Average;

  /// @return the fields that every operation has
  OperationOptions operation() const {
    return {.name = name, .timeout = timeout, .process_set = process_set};
  }
};

/// Concatenates tensors of all ranks along dimension 0, in the order of ranks.
/// @param tensor [rows, ...]; rows may differ between ranks and be 0, other dimensions must agree
/// @return [sum of all rows, ...], on every rank
at::Tensor allgather(const at::Tensor& tensor, const GatherOptions& options = {});
TensorHandle allgather_async(const at::Tensor& tensor, const GatherOptions& options = {});

std::vector<at::Tensor> grouped_allgather(const std::vector<at::Tensor>& tensors,
                                          const GatherOptions& options = {});
TensorsHandle grouped_allgather_async(const std::vector<at::Tensor>& tensors,
                                      const GatherOptions& options = {});

/// Copies the root's tensor to all ranks.
/// @param tensor [...], of the same shape and dtype on all ranks
/// @param root a world rank, the same on all ranks
at::Tensor broadcast(const at::Tensor& tensor, int root, const OperationOptions& options = {});
at::Tensor& broadcast_(at::Tensor& tensor, int root, const OperationOptions& options = {});
TensorHandle broadcast_async(const at::Tensor& tensor, int root,
                             const OperationOptions& options = {});
TensorHandle broadcast_async_(at::Tensor& tensor, int root, const OperationOptions& options = {});

std::vector<at::Tensor> grouped_broadcast(const std::vector<at::Tensor>& tensors, int root,
                                          const OperationOptions& options = {});
void grouped_broadcast_(const std::vector<at::Tensor>& tensors, int root,
                        const OperationOptions& options = {});
TensorsHandle grouped_broadcast_async(const std::vector<at::Tensor>& tensors, int root,
                                      const OperationOptions& options = {});
TensorsHandle grouped_broadcast_async_(const std::vector<at::Tensor>& tensors, int root,
                                       const OperationOptions& options = {});

struct AlltoallResult {
  at::Tensor output;                          ///< [sum of received_splits, ...]
  std::vector<std::int64_t> received_splits;  ///< number of rows from each rank
};
using AlltoallHandle = ResultHandle<AlltoallResult>;

/// Sends rows of each rank's tensor to every rank.
/// @param tensor [rows, ...]; rows may differ between ranks, other dimensions must agree
/// @param splits rows for each rank of the set, in order; 0 or more, adding up to `rows`; empty:
///   equal shares
/// @return the rows that all ranks sent to this one, in rank order
AlltoallResult alltoall(const at::Tensor& tensor, const std::vector<std::int64_t>& splits = {},
                        const OperationOptions& options = {});
AlltoallHandle alltoall_async(const at::Tensor& tensor,
                              const std::vector<std::int64_t>& splits = {},
                              const OperationOptions& options = {});

}  // namespace kolo
#pragma GCC visibility pop
