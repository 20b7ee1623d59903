#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "kolo/runtime.hpp"

#pragma GCC visibility push(default)
namespace kolo::extras {

/// An interpreter whose programs call the backend, such as Python.
struct Interpreter {
  /// Null, or called every 100 ms by a thread that waits for other ranks while the backend is made
  /// or in Work; throws to end the wait, as at a signal. The operation goes on.
  void (*check)() = nullptr;
  /// Whether the calling thread runs the program's code.
  bool (*is_calling)() = [] { return false; };
  /// Runs `wait` without the interpreter's lock.
  void (*unlock_while)(const std::function<void()>& wait) = [](const auto& wait) { wait(); };
};

/// A store of c10d for InitOptions::store. Give it a prefix that no other start uses.
///
/// @param check as of an Interpreter, called while ranks wait for one another
std::shared_ptr<Store> store_of(c10::intrusive_ptr<c10d::Store> store, void (*check)() = nullptr);

/// Makes a backend of LibTorch's c10d, as ProcessGroupGloo is one, over a process set of its own,
/// whose operations are matched by order (Matching::ByOrder): nothing is negotiated. Whatever takes
/// a c10d::Backend then runs on Kolo: c10d::ProcessGroup, its Reducer, torch.distributed.
///
/// Collective over `ranks`, and blocking. Tensors are strided, on the CPU or a CUDA device; those
/// that are not contiguous are copied. On CUDA, an operation runs on a stream of its own, after the
/// work on the current one; Work::wait() and futures order streams, as with ProcessGroupNCCL, and
/// messages pass through CPU memory. Data move in every dtype; reductions (SUM, AVG, PRODUCT, MIN,
/// MAX, BAND, BOR, BXOR, PREMUL_SUM) take Kolo's dtypes, and on the CPU an all-reduce takes sparse
/// COO tensors too. Gathers, scatters and monitored barriers are messages, which wait for ranks
/// that call something else until the deadline. What is not here throws what c10d throws.
///
/// Work::wait() makes progress on the calling thread; futures are completed by threads that the
/// backend starts when it is first asked for one. Their callbacks must not run collectives, which
/// they would submit at moments that differ between ranks. Those of an interpreter's programs may,
/// as with ProcessGroupNCCL: except of sends and receives, getFuture() returns to such a program
/// once the work has ended, so that callbacks run at once.
/// Tensors of Backend::allocateTensor() move without copies within a node: ProcessSet::allocate().
/// Backend::shutdown() removes the process set: collective and blocking. Without it the set stays
/// until `runtime` ends. Backend::abort() does nothing, as with ProcessGroupGloo.
///
/// @param store shared by the ranks, with a prefix of its own, as c10d gives each group
/// @param ranks world ranks, ascending, this rank among them
/// @param timeout of operations that name none
/// @throws InvalidArgument if `ranks` does not ascend; what Runtime::add_process_set throws
c10::intrusive_ptr<c10d::Backend> make_c10d_backend(Runtime& runtime,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    std::vector<int> ranks,
                                                    std::chrono::milliseconds timeout,
                                                    Interpreter interpreter = {});

}  // namespace kolo::extras
#pragma GCC visibility pop
