#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kolo/compression.hpp"
#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "kolo/reduction.hpp"
#include "kolo/runtime.hpp"
#include "kolo/tensor_view.hpp"

#pragma GCC visibility push(default)
/// Collectives on plain memory. kolo/tensor_collectives.hpp has them for at::Tensor.
///
///     kolo::TensorView view{data, kolo::DType::Float32, {rows, columns}};
///     kolo::allreduce(view, view, {.op = kolo::ReduceOp::Sum, .name = "loss"});  // in place
///
/// Every rank of the process set submits each operation once, under the same name, in any order and
/// at any time; it runs when all ranks have submitted it. The forms `_async` return at once, and
/// memory must stay valid and untouched until the handle is ready. The other forms block. Forms
/// `grouped_` run several tensors under one name: all of them run, or none, and they succeed or
/// fail together.
///
/// CUDA memory: operations are ordered by streams, as kernels are. An operation runs after the work
/// that is on `stream` when it is submitted; work that is put on `stream` after Handle::wait(), or
/// after a blocking call, runs after the operation. `keep_alive` is held until the GPU has finished
/// with the memory. A rank uses one GPU. Custom reductions take CPU memory only.
///
/// Errors at the call: InvalidArgument if an operation of that name is in flight on this rank or if
/// the rank is not a member of the process set; ShutdownError after the Runtime has ended. Errors
/// from the handle or the blocking call, raised on all ranks: InvalidArgument if the arguments of
/// any rank are invalid, MismatchError if ranks disagree, TimeoutError if the deadline passed on
/// any rank, PeerLostError, ShutdownError. After the first three the process set stays usable.
///
/// After a PeerLostError Kolo no longer writes to the operation's memory on this rank once the
/// handle is ready, so the memory may be used again. Receives are cancelled first; a message that
/// has begun to arrive is waited for, up to half a second. Only a rank that hangs in the middle of
/// a message and resumes later could still send the rest. MPI may still read the inputs: memory
/// that returns to the system (free, munmap) before the process ends needs an owner in
/// `keep_alive`, which is then kept until then. A SharedBuffer is also written by ranks that have
/// not heard of the loss yet.
///
/// The semantics are those of Horovod's operations of the same names.
namespace kolo {

/// Options of every operation.
struct OperationOptions {
  std::string name{};  ///< the same on all ranks; empty: numbered in the order of unnamed calls
  std::optional<std::chrono::nanoseconds> timeout{};  ///< default: KOLO_TIMEOUT
  ProcessSet* process_set = nullptr;                  ///< default: the world of Runtime::current()
  /// Owner of the memory, held until the operation has ended; after a PeerLostError, for good.
  std::shared_ptr<void> keep_alive{};
  void* stream = nullptr;  ///< a cudaStream_t, for CUDA memory
  std::string purpose{};   ///< compared like a shape: ranks that differ in it get a MismatchError
};

/// Options of a reduction. The fields from `name` on are those of OperationOptions, repeated so
/// that a call sets all of them on one level: `{.op = ReduceOp::Sum, .name = "loss"}`.
struct AllreduceOptions {
  ReduceOp op = ReduceOp::Average;
  double prescale = 1.0;   ///< factor on every input; 1 with Custom
  double postscale = 1.0;  ///< factor on the result; 1 with Custom
  Compression compression = Compression::none();
  /// BetweenNodes is for all-reduces in CPU memory, not for reduce-scatters.
  CompressionScope compression_scope = CompressionScope::Everywhere;
  /// Error feedback of a codec, or null: as many floats as the input has elements, on its device,
  /// zeros at first, which only the uses of this operation touch. They are added to the input
  /// before it is encoded, and become what encoding has lost on this rank. For operations on one
  /// tensor. A reduce-scatter encodes none of this rank's rows, and adds the residual to them. With
  /// BetweenNodes there is one float for each element of encoded_between_nodes(), in their order.
  /// On one node nothing is encoded, and the residual does not change.
  float* residual = nullptr;
  std::string custom{};  ///< with ReduceOp::Custom: which of InitOptions::reductions
  JoinDivisor join_divisor = JoinDivisor::World;
  std::string name{};
  std::optional<std::chrono::nanoseconds> timeout{};
  ProcessSet* process_set = nullptr;
  std::shared_ptr<void> keep_alive{};
  void* stream = nullptr;

  /// @return the fields that every operation has
  OperationOptions operation() const {
    return {.name = name,
            .timeout = timeout,
            .process_set = process_set,
            .keep_alive = keep_alive,
            .stream = stream};
  }
};

/// Input and output of one reduction.
struct InputOutput {
  TensorView input;
  TensorView output;
};

/// Reduces the tensors of all ranks element by element and gives every rank the result.
///
/// @param input this rank's tensor [...]; shape and dtype must be equal on all ranks
/// @param output receives the result: same shape, dtype and device; may be the input's memory
/// @param options reduction, scales, compression; see AllreduceOptions
/// @return handle that is ready when `output` holds the result
/// @throws see the errors above
Handle allreduce_async(const TensorView& input, const TensorView& output,
                       const AllreduceOptions& options = {});
/// Blocking allreduce_async.
void allreduce(const TensorView& input, const TensorView& output,
               const AllreduceOptions& options = {});

/// A run of elements of a tensor.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// The elements that this rank encodes in an all-reduce with CompressionScope::BetweenNodes: a
/// piece of its node's sum. The pieces of a node's ranks are almost equally long, and together the
/// tensor; where nodes have different numbers of ranks, as many of each node as the smallest has
/// get one, and the others none. On one node they are cut in the same way, and not encoded.
///
/// @param count elements of the tensor
/// @param process_set default: the world of Runtime::current()
/// @return the piece, which may be empty. Neither blocking nor collective
/// @throws InvalidArgument if `count` is negative
ElementRange encoded_between_nodes(std::int64_t count, ProcessSet* process_set = nullptr);

/// Reduces several tensors as one operation; see allreduce_async.
///
/// @param tensors as many, in the same order, on all ranks
Handle grouped_allreduce_async(const std::vector<InputOutput>& tensors,
                               const AllreduceOptions& options = {});
/// Blocking grouped_allreduce_async.
void grouped_allreduce(const std::vector<InputOutput>& tensors,
                       const AllreduceOptions& options = {});

/// Number of rows that a reduce-scatter gives a rank: an equal share, and one more on the first
/// ranks if the rows do not divide evenly.
///
/// @param rows rows of the input
/// @param size ranks in the process set
/// @param rank this rank's place in the set
std::int64_t scattered_rows(std::int64_t rows, int size, int rank);

/// Reduces the tensors of all ranks element by element and scatters the rows of the result.
///
/// Ranks receive their rows in the order of ranks; if there are fewer rows than ranks, the last
/// ranks receive none.
///
/// @param input this rank's tensor [rows, ...]; shape and dtype must be equal on all ranks
/// @param output receives [scattered_rows(rows), ...]; may be this rank's place in `input`
/// @param options as for an all-reduce; every reduction but Adasum
/// @return handle that is ready when `output` holds this rank's rows
Handle reduce_scatter_async(const TensorView& input, const TensorView& output,
                            const AllreduceOptions& options = {});
/// Blocking reduce_scatter_async.
void reduce_scatter(const TensorView& input, const TensorView& output,
                    const AllreduceOptions& options = {});
/// Reduces and scatters several tensors as one operation; see reduce_scatter_async.
Handle grouped_reduce_scatter_async(const std::vector<InputOutput>& tensors,
                                    const AllreduceOptions& options = {});
/// Blocking grouped_reduce_scatter_async.
void grouped_reduce_scatter(const std::vector<InputOutput>& tensors,
                            const AllreduceOptions& options = {});

/// Copies a tensor from one rank to all others, in place.
///
/// @param tensor [...] of equal shape and dtype on all ranks; read on the root, written elsewhere
/// @param root world rank that supplies the data, the same on all ranks
Handle broadcast_async(const TensorView& tensor, int root, const OperationOptions& options = {});
/// Blocking broadcast_async.
void broadcast(const TensorView& tensor, int root, const OperationOptions& options = {});
/// Broadcasts several tensors as one operation; see broadcast_async.
Handle grouped_broadcast_async(const std::vector<TensorView>& tensors, int root,
                               const OperationOptions& options = {});
/// Blocking grouped_broadcast_async.
void grouped_broadcast(const std::vector<TensorView>& tensors, int root,
                       const OperationOptions& options = {});

/// Allocates an output once the rows that each rank sends are known.
///
/// Called on any thread that makes progress for the process set. It must not wait for operations of
/// the same set; other sets are not held up.
///
/// @param rows number of rows that come from each rank
/// @return memory for all rows, valid until the handle is ready
using AllocateRows = std::function<void*(const std::vector<std::int64_t>& rows)>;

/// Input of an all-gather and the allocator of its output.
struct InputRows {
  TensorView input;
  AllocateRows allocate;
};

/// Concatenates the tensors of all ranks along dimension 0, in the order of ranks.
///
/// @param input this rank's tensor [rows, ...]; rows may differ between ranks and may be 0, the
///        other dimensions and the dtype must agree
/// @param allocate returns memory for the rows of all ranks
/// @return handle that is ready when the output holds all rows
Handle allgather_async(const TensorView& input, AllocateRows allocate,
                       const OperationOptions& options = {});
/// Blocking allgather_async.
void allgather(const TensorView& input, AllocateRows allocate,
               const OperationOptions& options = {});
/// Gathers several tensors as one operation; see allgather_async.
Handle grouped_allgather_async(std::vector<InputRows> tensors,
                               const OperationOptions& options = {});
/// Blocking grouped_allgather_async.
void grouped_allgather(std::vector<InputRows> tensors, const OperationOptions& options = {});

/// Sends rows to every rank and receives rows from every rank.
///
/// @param input this rank's tensor [rows, ...]; the dimensions after the first and the dtype must
///        agree
/// @param splits rows for each rank of the set, in order, which add up to `rows`; empty: equal
///        shares
/// @param allocate returns memory for the rows that all ranks send to this one, in their order
/// @return handle that is ready when the output holds all rows
Handle alltoall_async(const TensorView& input, std::vector<std::int64_t> splits,
                      AllocateRows allocate, const OperationOptions& options = {});
/// Blocking alltoall_async.
void alltoall(const TensorView& input, std::vector<std::int64_t> splits, AllocateRows allocate,
              const OperationOptions& options = {});

/// Waits until every rank of the set has called it.
///
/// @return handle that is ready then
Handle barrier_async(const OperationOptions& options = {});
/// Blocking barrier_async.
void barrier(const OperationOptions& options = {});

/// Declares that this rank has no more operations to submit, and blocks until all ranks have done
/// so and everything that they submitted before has ended.
///
/// Meanwhile the rank contributes identities to the others' operations: zeros to sums, ones to
/// products, no rows to gathers. Average divides as AllreduceOptions::join_divisor says. What the
/// rank submitted before counts in full. On the other ranks, InvalidArgument ends a broadcast from
/// a rank that has joined, an all-to-all that sends it rows, and adding or removing a process set.
/// The call has no deadline: it waits as long as the others work.
///
/// @param process_set null: the world of Runtime::current()
/// @return the world rank that joined last, the same on all ranks; the highest if several did
/// @throws InvalidArgument if this rank has joined the set already
int join(ProcessSet* process_set = nullptr);

}  // namespace kolo
#pragma GCC visibility pop
