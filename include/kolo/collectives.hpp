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
/// Errors, at the call: InvalidArgument where a name is in flight already or memory is unsuitable;
/// ShutdownError after the Runtime ended. From the handle, on all ranks: MismatchError where ranks
/// disagree, TimeoutError where the deadline passed on any, PeerLostError, ShutdownError.
/// Semantics after Horovod's operations of the same names.
namespace kolo {

/// What every operation may be given.
struct OperationOptions {
  std::string name{};  ///< the same on all ranks; empty: from the order of unnamed calls
  std::optional<std::chrono::nanoseconds> timeout{};  ///< by default KOLO_TIMEOUT
  ProcessSet* process_set = nullptr;   ///< by default the world of Runtime::current()
  std::shared_ptr<void> keep_alive{};  ///< an owner of the memory, held until the operation ended
};

struct AllreduceOptions {
  ReduceOp op = ReduceOp::Average;
  double prescale = 1.0;   ///< factor on every input, before
  double postscale = 1.0;  ///< factor on the result, after
  Compression compression = Compression::none();
  std::string name{};
  std::optional<std::chrono::nanoseconds> timeout{};
  ProcessSet* process_set = nullptr;
  std::shared_ptr<void> keep_alive{};
};

/// Combines `input` [...] of all ranks element by element into `output` of the same shape and dtype
/// on every rank. In place where both are the same memory.
Handle allreduce_async(const TensorView& input, const TensorView& output,
                       const AllreduceOptions& options = {});
void allreduce(const TensorView& input, const TensorView& output,
               const AllreduceOptions& options = {});

/// Copies `tensor` [...] of the rank `root`, a world rank, to all ranks, in place.
Handle broadcast_async(const TensorView& tensor, int root, const OperationOptions& options = {});
void broadcast(const TensorView& tensor, int root, const OperationOptions& options = {});

/// Gives memory for what all ranks gather together, given every rank's row count.
using AllocateRows = std::function<void*(const std::vector<std::int64_t>& rows)>;

/// Puts `input` [rows, ...] of all ranks one after another, in the order of ranks. Rows may differ
/// between ranks and may be 0; the other dimensions must agree. Once all row counts are known,
/// `allocate` is called, on any thread that drives the process set, and returns memory for all rows,
/// which must stay valid until the handle is ready.
Handle allgather_async(const TensorView& input, AllocateRows allocate,
                       const OperationOptions& options = {});
void allgather(const TensorView& input, AllocateRows allocate,
               const OperationOptions& options = {});

}  // namespace kolo
