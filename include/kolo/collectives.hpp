#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/check_macros.hpp"
#include "kolo/compression.hpp"
#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "kolo/reduction.hpp"
#include "kolo/runtime.hpp"
#include "kolo/tensor_view.hpp"

#pragma GCC visibility push(default)
/// Collectives on plain memory. kolo/torch/tensor_collectives.hpp has them for at::Tensor.
///
///     kolo::TensorView view{data, kolo::DType::Float32, {rows, columns}};
///     kolo::allreduce(view, view, {.op = kolo::ReduceOp::Sum, .name = "loss"});  // in place
///
/// Every rank of the process set submits each operation once, under the same name, in any order and
/// at any time; the operation runs once all ranks have submitted it. The `_async` forms return at
/// once; memory must stay valid and untouched until the handle is ready. The other forms block. The
/// `grouped_` forms run several tensors under one name; these succeed or fail together.
///
/// CUDA memory: operations are ordered by streams, like kernels. An operation runs after the work
/// that is on `stream` when it is submitted; work put on `stream` after Handle::wait(), or after a
/// blocking call, runs after the operation. `keep_alive` is held until the GPU has finished with
/// the memory. Each rank uses one GPU. Custom reductions support CPU memory only.
///
/// What an operation writes may overlap nothing else that it uses, but for what each call allows
/// (all-reduce: the output may be the input); otherwise all ranks throw InvalidArgument.
///
/// Errors at the call: InvalidArgument if operations are matched by name and one of that name is in
/// flight on this rank, or if the rank is not a member of the process set; ShutdownError after the
/// Runtime has ended. Errors from the handle or the blocking call, raised on all ranks:
/// InvalidArgument if the arguments of any rank are invalid, MismatchError if ranks disagree,
/// TimeoutError if the deadline passed on any rank, PeerLostError, ShutdownError. After the first
/// three the process set stays usable.
///
/// After a PeerLostError, Kolo no longer writes to the operation's memory on this rank once the
/// handle is ready, so the memory may be used again. Kolo cancels receives first; if a message has
/// begun to arrive, it waits for the rest, up to half a second. Only a rank that hangs in the
/// middle of a message and resumes later could still send the rest. MPI may still read the inputs:
/// memory that returns to the system (free, munmap) before the process ends needs an owner in
/// `keep_alive`, which Kolo then keeps until the process ends. Ranks that have not yet learned of
/// the loss may still write to a SharedBuffer.
///
/// Sums keep denormal numbers and round to nearest, whatever modes the program's threads have set.
///
/// The semantics are those of Horovod's operations of the same names.
namespace kolo {

/// Options of every operation.
struct OperationOptions {
  std::string name{};  ///< the same on all ranks; empty: numbered by the order of unnamed calls
  std::optional<std::chrono::nanoseconds> timeout{};  ///< default: KOLO_TIMEOUT
  ProcessSet* process_set = nullptr;                  ///< default: the world of Runtime::current()
  /// Owner of the memory, held until the operation has ended; after a PeerLostError, for good.
  std::shared_ptr<void> keep_alive{};
  void* stream = nullptr;  ///< a cudaStream_t, for CUDA memory
  std::string purpose{};   ///< compared like a shape: if ranks differ, all get a MismatchError
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
  /// Error feedback of a codec, or null: one float per element of the input, initialised to zeros,
  /// and used for this operation only. The residual is added to the input before it is encoded, and
  /// replaced with the encoding error of this rank. For operations on one tensor. In a
  /// reduce-scatter, this rank's own rows are not encoded; the residual is added to them. With
  /// BetweenNodes, the residual has one float per element of encoded_between_nodes(), in the same
  /// order. On one node nothing is encoded, and the residual does not change.
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

/// The range that this rank encodes in an all-reduce with CompressionScope::BetweenNodes: a part of
/// its node's sum. The ranges of a node's ranks cover the tensor and differ in length by little. If
/// nodes have different numbers of ranks, only as many ranks of each node as the smallest node has
/// get a range. On one node there are ranges too, but nothing is encoded.
///
/// @param count elements of the tensor
/// @param process_set default: the world of Runtime::current()
/// @return the range, which may be empty. Neither blocking nor collective
/// @throws InvalidArgument if `count` is negative
ElementRange encoded_between_nodes(std::int64_t count, ProcessSet* process_set = nullptr);

/// Reduces several tensors as one operation; see allreduce_async.
///
/// @param tensors the same number, in the same order, on all ranks
Handle grouped_allreduce_async(const std::vector<InputOutput>& tensors,
                               const AllreduceOptions& options = {});
/// Blocking grouped_allreduce_async.
void grouped_allreduce(const std::vector<InputOutput>& tensors,
                       const AllreduceOptions& options = {});

/// The number of rows that a rank receives in a reduce-scatter: an equal share, plus one on the
/// first ranks if the rows do not divide evenly.
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
/// @param output receives [scattered_rows(rows), ...]; may be this rank's rows of `input`
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

/// Allocates an output once the numbers of rows of all ranks are known.
///
/// Called on any thread that makes progress for the process set. It must not wait for operations of
/// the same set. Other sets are not delayed meanwhile. If it throws, or returns null or memory that
/// overlaps what the operation uses, this rank counts as lost.
///
/// @param rows number of rows from each rank
/// @return memory for all rows, valid until the handle is ready; all-gather: its rows of this rank
///         may be the input
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
/// Gathers rows of which the program knows how many each rank has, into memory for all of them.
///
/// @param rows of each rank, the same on all ranks
Handle allgather_async(const TensorView& input, void* output, std::vector<std::int64_t> rows,
                       const OperationOptions& options = {});
/// Blocking allgather_async.
void allgather(const TensorView& input, AllocateRows allocate,
               const OperationOptions& options = {});
/// Gathers several tensors as one operation; see allgather_async.
Handle grouped_allgather_async(std::vector<InputRows> tensors,
                               const OperationOptions& options = {});
/// A tensor [rows, ...] to be gathered, and memory on its device for all ranks' rows of it, in the
/// order of ranks; `input` may be this rank's rows there.
struct InputAndGathered {
  TensorView input;
  void* output;
};
/// Gathers several tensors, of all of which rank r has `rows[r]` rows, as one operation. `rows` is
/// the same on all ranks; dtypes and further dimensions may differ between tensors, but not between
/// ranks.
///
/// @throws InvalidArgument, MismatchError by the Handle, on all ranks
Handle grouped_allgather_async(const std::vector<InputAndGathered>& tensors,
                               std::vector<std::int64_t> rows,
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
/// @return handle that is ready once they have
Handle barrier_async(const OperationOptions& options = {});
/// Blocking barrier_async.
void barrier(const OperationOptions& options = {});

/// Declares that this rank will submit no more operations, and blocks until all ranks have joined
/// and everything that they submitted before has ended.
///
/// Meanwhile the rank contributes the identity to the others' operations: zeros to sums, ones to
/// products, no rows to gathers. AllreduceOptions::join_divisor decides what Average divides by.
/// Operations that the rank submitted before it joined count in full. On the other ranks, a
/// broadcast from a joined rank, an all-to-all that sends rows to it, and adding or removing a
/// process set fail with InvalidArgument. The call has no timeout: it waits until the others have
/// joined.
///
/// @param process_set null: the world of Runtime::current()
/// @return the world rank that joined last, the same on all ranks; the highest if several did
/// @throws InvalidArgument if this rank has joined the set already
int join(ProcessSet* process_set = nullptr);

/// Ends a collective with InvalidArgument and `problem` on all ranks, in place of a call that this
/// rank cannot make: for functions built on a collective in which the other ranks already wait.
/// Blocks until they have called it.
///
/// @param collective what they call
/// @param options with the name and the set of their call
/// @throws InvalidArgument, or another error of the collective; it never returns
[[noreturn]] void refuse(Collective collective, const std::string& problem,
                         const OperationOptions& options = {});

}  // namespace kolo
#pragma GCC visibility pop
