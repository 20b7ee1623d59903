#pragma once

#include <chrono>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "kolo/runtime.hpp"

#pragma GCC visibility push(default)
namespace kolo::extras {

/// Makes a backend of LibTorch's c10d, as ProcessGroupGloo is one, over a process set of its own,
/// whose operations are matched by order (Matching::ByOrder): nothing is negotiated. Whatever takes
/// a c10d::Backend then runs on Kolo: c10d::ProcessGroup, its Reducer, torch.distributed.
///
/// Collective over `ranks`, and blocking. Tensors are dense, on the CPU or a CUDA device. Data move
/// in every dtype; sums, averages, products, minima and maxima take Kolo's dtypes, sums and
/// averages complex ones, too. Tensors of a collective must have the same number of elements on all
/// ranks unless c10d says otherwise. What is not here throws what c10d throws.
///
/// Work::wait() makes progress on the calling thread; futures are completed by a thread that the
/// backend starts when it is first asked for one. Backend::shutdown() removes the process set:
/// collective and blocking. Without it the set stays until `runtime` ends, before which the backend
/// and its works must be destroyed.
///
/// @param store shared by the ranks, with a prefix of its own, as c10d gives each group
/// @param ranks world ranks, ascending, this rank among them
/// @param timeout of operations that name none
/// @throws InvalidArgument if `ranks` does not ascend; what Runtime::add_process_set throws
c10::intrusive_ptr<c10d::Backend> make_c10d_backend(Runtime& runtime,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    std::vector<int> ranks,
                                                    std::chrono::milliseconds timeout);

}  // namespace kolo::extras
#pragma GCC visibility pop
