#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/collectives.hpp"
#include "kolo/tensor_handle.hpp"

/// Collectives on at::Tensor. What kolo/collectives.hpp says of names, groups, blocking and errors
/// holds here too.
///
/// Tensors: strided, on the CPU or on a CUDA device, of uint8, int8, int16, int32, int64, float16,
/// bfloat16, float32, float64 or bool, of any shape, contiguous or not, with zero elements too;
/// with anything else the operation ends with InvalidArgument on all ranks. Operations keep their
/// tensors alive until they have ended. Results are contiguous, those of the forms with a trailing
/// underscore the tensors that were given; these are written to no later than when the caller
/// waits.
///
/// On a CUDA device an operation comes behind what is on the current stream when it is called, and
/// what the waiting thread puts on its current stream afterwards comes behind the operation; no
/// thread waits for the GPU. OperationOptions::stream is not looked at.
///
/// Autograd: the forms that block and return a new tensor are differentiable, where gradients are
/// on and a tensor requires them. Every rank must then run backward alike, for it communicates,
/// under the operation's name with ".gradient" behind. What is differentiated are the losses L of
/// all n ranks; the rules are Horovod's:
///   allreduce       Sum, Average and scales: the gradient of the sum of L
///   allgather       of their mean, or of their sum (GatherGradient)
///   broadcast       of their mean, on the root; zero elsewhere
///   alltoall        of their sum
///   reduce_scatter  n times that of their sum
/// Min, Max, Product, Adasum and Custom have none: backward throws InvalidArgument. Gradients can
/// be differentiated in turn. The other forms take no part in autograd.
namespace kolo {

/// Combines `tensor` [...] of all ranks element by element. The plain forms return new tensors of
/// the same shapes, those with a trailing underscore change the given ones, on every rank.
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

/// Combines `tensor` [rows, ...] of all ranks element by element and returns this rank's rows of
/// the result: [scattered_rows(rows, size, rank), ...].
at::Tensor reduce_scatter(const at::Tensor& tensor, const AllreduceOptions& options = {});
TensorHandle reduce_scatter_async(const at::Tensor& tensor, const AllreduceOptions& options = {});

std::vector<at::Tensor> grouped_reduce_scatter(const std::vector<at::Tensor>& tensors,
                                               const AllreduceOptions& options = {});
TensorsHandle grouped_reduce_scatter_async(const std::vector<at::Tensor>& tensors,
                                           const AllreduceOptions& options = {});

/// Combines sparse (COO) tensors of one shape: the result is the sum, or the average, of all
/// ranks'. Each rank's tensor is coalesced first, the result is not: it lists the entries of all
/// ranks in their order. Sum, and for floating types Average and scales; no compression.
at::Tensor sparse_allreduce(const at::Tensor& tensor, const AllreduceOptions& options = {});
TensorHandle sparse_allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options = {});

/// What the gradient of an all-gather does with the gradients that all ranks have for one rank's
/// rows.
enum class GatherGradient { Average, Sum };

struct GatherOptions {
  std::string name{};
  std::optional<std::chrono::nanoseconds> timeout{};
  ProcessSet* process_set = nullptr;
  GatherGradient gradient = GatherGradient::Average;
};

/// Concatenates `tensor` [rows, ...] of all ranks along dimension 0, in the order of ranks. Rows
/// may differ between ranks and may be 0, the other dimensions must agree. The result has the sum
/// of all rows.
at::Tensor allgather(const at::Tensor& tensor, const GatherOptions& options = {});
TensorHandle allgather_async(const at::Tensor& tensor, const GatherOptions& options = {});

std::vector<at::Tensor> grouped_allgather(const std::vector<at::Tensor>& tensors,
                                          const GatherOptions& options = {});
TensorsHandle grouped_allgather_async(const std::vector<at::Tensor>& tensors,
                                      const GatherOptions& options = {});

/// Copies `tensor` [...] of the world rank `root`, which all ranks must give alike, to all ranks;
/// the others supply a tensor of the same shape and dtype.
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
  std::vector<std::int64_t> received_splits;  ///< how many rows came from each rank
};
using AlltoallHandle = ResultHandle<AlltoallResult>;

/// Sends rows of `tensor` [rows, ...] to every rank: the first `splits[0]` to the first rank of the
/// set, and so on; without splits, equal shares. Splits may be 0 and add up to the rows. Returns
/// the rows that the ranks sent to this one, in their order.
AlltoallResult alltoall(const at::Tensor& tensor, const std::vector<std::int64_t>& splits = {},
                        const OperationOptions& options = {});
AlltoallHandle alltoall_async(const at::Tensor& tensor,
                              const std::vector<std::int64_t>& splits = {},
                              const OperationOptions& options = {});

}  // namespace kolo
