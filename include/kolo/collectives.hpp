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

/// Collectives on plain memory. kolo/tensor_collectives.hpp has them on at::Tensor.
///
/// All of them are collective: every rank of the process set submits the operation once under the
/// same name, in any order and at any time, and it runs when all have. The forms `_async` return at
/// once; memory must stay valid, and untouched, until the handle is ready. The others block.
///
/// Memory after a PeerLostError: when the handle is ready nothing of this rank's writes to it any
/// more, so it may be used again. Receives are given up first; a message that has begun to arrive
/// is waited for, half a second at most, and only a rank that hangs in the middle of a message and
/// goes on later could still send the rest. MPI may still read the inputs: memory that is given
/// back to the system (free, munmap) before the process ends needs an owner in `keep_alive`, which
/// is then held until that. A SharedBuffer is other ranks' memory too: those that have not heard of
/// the loss yet may write to theirs and to this rank's part of it.
///
/// On CUDA memory operations are ordered by streams, as kernels are. `stream` is the program's:
/// what is on it when the operation is submitted comes before it, and what is put on it after
/// Handle::wait(), or after the call that blocks, comes behind it. `keep_alive` is held until the
/// GPU is through with the memory. A rank uses one GPU. Custom reductions are for CPU memory.
///
/// Groups ("grouped_") are several tensors under one name: all of them run, or none, and the handle
/// is ready, or fails, for all together.
///
/// Errors, at the call: InvalidArgument where a name is in flight already or this rank is no member
/// of the set; ShutdownError after the Runtime ended. From the handle, on all ranks:
/// InvalidArgument where the arguments of any rank cannot be right, MismatchError where ranks
/// disagree, TimeoutError where the deadline passed on any, PeerLostError, ShutdownError. After the
/// first three the process set works on. Semantics after Horovod's operations of the same names.
namespace kolo {

/// What every operation may be given.
struct OperationOptions {
  std::string name{};  ///< the same on all ranks; empty: from the order of unnamed calls
  std::optional<std::chrono::nanoseconds> timeout{};  ///< by default KOLO_TIMEOUT
  ProcessSet* process_set = nullptr;  ///< by default the world of Runtime::current()
  /// An owner of the memory, held until the operation ended; after a PeerLostError, for good.
  std::shared_ptr<void> keep_alive{};
  void* stream = nullptr;  ///< a cudaStream_t; see above
};

/// What a reduction may be given: how the elements are combined, and the fields of OperationOptions.
/// These stand here once more so that a call names all of them on one level, as in
/// `allreduce(x, x, {.op = ReduceOp::Sum, .name = "loss"})`.
struct AllreduceOptions {
  ReduceOp op = ReduceOp::Average;
  double prescale = 1.0;   ///< factor on every input, before; 1 with Custom
  double postscale = 1.0;  ///< factor on the result, after; 1 with Custom
  Compression compression = Compression::none();
  std::string custom{};  ///< with ReduceOp::Custom: which of InitOptions::reductions
  JoinDivisor join_divisor = JoinDivisor::World;
  std::string name{};
  std::optional<std::chrono::nanoseconds> timeout{};
  ProcessSet* process_set = nullptr;
  std::shared_ptr<void> keep_alive{};
  void* stream = nullptr;

  /// The fields that are not about reductions.
  OperationOptions operation() const {
    return {.name = name,
            .timeout = timeout,
            .process_set = process_set,
            .keep_alive = keep_alive,
            .stream = stream};
  }
};

/// Combines `input` [...] of all ranks element by element into `output` of the same shape and dtype
/// on every rank. In place where both are the same memory.
Handle allreduce_async(const TensorView& input, const TensorView& output,
                       const AllreduceOptions& options = {});
void allreduce(const TensorView& input, const TensorView& output,
               const AllreduceOptions& options = {});

/// Where a reduction reads and where it writes.
struct InputOutput {
  TensorView input;
  TensorView output;
};
Handle grouped_allreduce_async(const std::vector<InputOutput>& tensors,
                               const AllreduceOptions& options = {});
void grouped_allreduce(const std::vector<InputOutput>& tensors,
                       const AllreduceOptions& options = {});

/// Of `rows` that are scattered over `size` ranks, how many rank `rank` gets: an equal share, and
/// one more where they do not divide evenly and `rank` is among the first.
std::int64_t scattered_rows(std::int64_t rows, int size, int rank);

/// Combines `input` [rows, ...] of all ranks element by element, and puts this rank's rows of the
/// result into `output` [scattered_rows(rows), ...]. Ranks in their order get the rows in theirs;
/// with fewer rows than ranks the last get none. `output` may be this rank's place in `input`.
/// Takes every reduction but Adasum.
Handle reduce_scatter_async(const TensorView& input, const TensorView& output,
                            const AllreduceOptions& options = {});
void reduce_scatter(const TensorView& input, const TensorView& output,
                    const AllreduceOptions& options = {});
Handle grouped_reduce_scatter_async(const std::vector<InputOutput>& tensors,
                                    const AllreduceOptions& options = {});
void grouped_reduce_scatter(const std::vector<InputOutput>& tensors,
                            const AllreduceOptions& options = {});

/// Copies `tensor` [...] of the rank `root`, a world rank, to all ranks, in place.
Handle broadcast_async(const TensorView& tensor, int root, const OperationOptions& options = {});
void broadcast(const TensorView& tensor, int root, const OperationOptions& options = {});
Handle grouped_broadcast_async(const std::vector<TensorView>& tensors, int root,
                               const OperationOptions& options = {});
void grouped_broadcast(const std::vector<TensorView>& tensors, int root,
                       const OperationOptions& options = {});

/// Gives memory for rows that come from all ranks, given how many come from each. It may take its
/// time, which holds no other process set, but must not wait for operations of its own set.
using AllocateRows = std::function<void*(const std::vector<std::int64_t>& rows)>;

/// Rows that a rank gives, and the place for those that it gets.
struct InputRows {
  TensorView input;
  AllocateRows allocate;
};

/// Puts `input` [rows, ...] of all ranks one after another, in the order of ranks. Rows may differ
/// between ranks and may be 0; the other dimensions must agree. Once all row counts are known,
/// `allocate` is called, on any thread that drives the process set, and returns memory for all
/// rows, which must stay valid until the handle is ready.
Handle allgather_async(const TensorView& input, AllocateRows allocate,
                       const OperationOptions& options = {});
void allgather(const TensorView& input, AllocateRows allocate,
               const OperationOptions& options = {});
Handle grouped_allgather_async(std::vector<InputRows> tensors,
                               const OperationOptions& options = {});
void grouped_allgather(std::vector<InputRows> tensors, const OperationOptions& options = {});

/// Sends rows of `input` [rows, ...] to every rank: the first `splits[0]` to the first rank of the
/// set, and so on; without splits, equal shares. Splits add up to the rows. What the ranks send to
/// this one, in their order, goes to the memory that `allocate` returns, as for allgather_async.
Handle alltoall_async(const TensorView& input, std::vector<std::int64_t> splits,
                      AllocateRows allocate, const OperationOptions& options = {});
void alltoall(const TensorView& input, std::vector<std::int64_t> splits, AllocateRows allocate,
              const OperationOptions& options = {});

/// Returns once every rank has called it.
Handle barrier_async(const OperationOptions& options = {});
void barrier(const OperationOptions& options = {});

/// Says that this rank has no more operations to submit, and blocks until all ranks have said so
/// and all that they submitted before has ended. Meanwhile it takes part in the others' with what
/// changes nothing: zeros in sums, ones in products, no rows. Average divides as
/// AllreduceOptions::join_divisor says. A broadcast from a rank that has joined, rows sent to one,
/// and process sets added or removed meanwhile are InvalidArgument on all others. What this rank
/// submitted before counts in full. Returns the world rank that joined last, of several at once the
/// highest; the same on all ranks. It waits as long as the others work: it has no deadline of its
/// own. One call at a time and process set: a second one throws InvalidArgument. After Horovod's
/// join, for every operation and any process set.
int join(ProcessSet* process_set = nullptr);

}  // namespace kolo
