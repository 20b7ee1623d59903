#include "kolo/collectives.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "ops/pieces.hpp"
#include "runtime/lane.hpp"
#include "runtime/submit.hpp"

namespace kolo {

using runtime::add_defect;
using runtime::add_rows;
using runtime::add_tensor;
using runtime::chosen;
using runtime::make_operation;
using runtime::make_reduction;
using runtime::Operation;
using runtime::run;
using runtime::submit;

namespace {

// --- from arguments to operations ---

using OperationPtr = std::shared_ptr<Operation>;

OperationPtr make_broadcast(ProcessSet& set, const std::vector<TensorView>& tensors, int root,
                            const OperationOptions& options) {
  OperationPtr operation = make_operation(set, Collective::Broadcast, options);
  operation->request.root = root;
  const std::vector<int>& ranks = set.ranks();
  if (!std::binary_search(ranks.begin(), ranks.end(), root)) {
    add_defect(*operation, "root rank " + std::to_string(root) +
                               " is not a member of the process set. Roots are world ranks.");
  }
  for (const TensorView& tensor : tensors) {
    add_tensor(*operation, tensor).output = static_cast<std::byte*>(tensor.data);
  }
  return operation;
}

auto bytes_from(AllocateRows allocate) {
  return [allocate = std::move(allocate)](const std::vector<std::int64_t>& rows) {
    return static_cast<std::byte*>(allocate(rows));
  };
}

/// Fills in equal shares, or checks the caller's.
std::vector<std::int64_t> checked_splits(Operation& operation, std::int64_t rows,
                                         std::vector<std::int64_t> splits, int size) {
  const std::size_t ranks = static_cast<std::size_t>(size);
  if (splits.empty()) {
    if (rows % size != 0) {
      add_defect(operation, std::to_string(rows) + " rows do not divide evenly over " +
                                std::to_string(size) + " ranks. Give splits.");
    }
    return std::vector<std::int64_t>(ranks, rows / size);
  }
  if (splits.size() != ranks) {
    add_defect(operation, "there are " + std::to_string(splits.size()) + " splits for " +
                              std::to_string(size) + " ranks");
  }
  if (std::any_of(splits.begin(), splits.end(), [](std::int64_t split) { return split < 0; })) {
    add_defect(operation, "a split is negative");
  }
  const std::int64_t sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (sum != rows) {
    add_defect(operation, "the splits add up to " + std::to_string(sum) + " rows, the tensor has " +
                              std::to_string(rows));
  }
  return splits;
}

OperationPtr make_allgather(ProcessSet& set, std::vector<InputRows> tensors,
                            const OperationOptions& options) {
  OperationPtr operation = make_operation(set, Collective::AllGather, options);
  for (InputRows& tensor : tensors) {
    add_rows(*operation, tensor.input).allocate_output = bytes_from(std::move(tensor.allocate));
  }
  return operation;
}

OperationPtr make_alltoall(ProcessSet& set, const TensorView& input,
                           std::vector<std::int64_t> splits, AllocateRows allocate,
                           const OperationOptions& options) {
  OperationPtr operation = make_operation(set, Collective::AllToAll, options);
  runtime::TensorMemory& memory = add_rows(*operation, input);
  memory.send_splits = checked_splits(*operation, memory.row_count, std::move(splits), set.size());
  memory.allocate_output = bytes_from(std::move(allocate));
  return operation;
}

}  // namespace

// --- reductions ---

Handle allreduce_async(const TensorView& input, const TensorView& output,
                       const AllreduceOptions& options) {
  return grouped_allreduce_async({{input, output}}, options);
}

void allreduce(const TensorView& input, const TensorView& output, const AllreduceOptions& options) {
  grouped_allreduce({{input, output}}, options);
}

Handle grouped_allreduce_async(const std::vector<InputOutput>& tensors,
                               const AllreduceOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  return submit(set, make_reduction(set, Collective::AllReduce, tensors, options));
}

void grouped_allreduce(const std::vector<InputOutput>& tensors, const AllreduceOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  run(set, make_reduction(set, Collective::AllReduce, tensors, options));
}

std::int64_t scattered_rows(std::int64_t rows, int size, int rank) {
  return static_cast<std::int64_t>(
      ops::piece_of(static_cast<std::size_t>(rows), size, rank).length);
}

Handle reduce_scatter_async(const TensorView& input, const TensorView& output,
                            const AllreduceOptions& options) {
  return grouped_reduce_scatter_async({{input, output}}, options);
}

void reduce_scatter(const TensorView& input, const TensorView& output,
                    const AllreduceOptions& options) {
  grouped_reduce_scatter({{input, output}}, options);
}

Handle grouped_reduce_scatter_async(const std::vector<InputOutput>& tensors,
                                    const AllreduceOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  return submit(set, make_reduction(set, Collective::ReduceScatter, tensors, options));
}

void grouped_reduce_scatter(const std::vector<InputOutput>& tensors,
                            const AllreduceOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  run(set, make_reduction(set, Collective::ReduceScatter, tensors, options));
}

// --- broadcast ---

Handle broadcast_async(const TensorView& tensor, int root, const OperationOptions& options) {
  return grouped_broadcast_async({tensor}, root, options);
}

void broadcast(const TensorView& tensor, int root, const OperationOptions& options) {
  grouped_broadcast({tensor}, root, options);
}

Handle grouped_broadcast_async(const std::vector<TensorView>& tensors, int root,
                               const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  return submit(set, make_broadcast(set, tensors, root, options));
}

void grouped_broadcast(const std::vector<TensorView>& tensors, int root,
                       const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  run(set, make_broadcast(set, tensors, root, options));
}

// --- rows ---

Handle allgather_async(const TensorView& input, AllocateRows allocate,
                       const OperationOptions& options) {
  return grouped_allgather_async({{input, std::move(allocate)}}, options);
}

void allgather(const TensorView& input, AllocateRows allocate, const OperationOptions& options) {
  grouped_allgather({{input, std::move(allocate)}}, options);
}

Handle grouped_allgather_async(std::vector<InputRows> tensors, const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  return submit(set, make_allgather(set, std::move(tensors), options));
}

void grouped_allgather(std::vector<InputRows> tensors, const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  run(set, make_allgather(set, std::move(tensors), options));
}

Handle alltoall_async(const TensorView& input, std::vector<std::int64_t> splits,
                      AllocateRows allocate, const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  return submit(set, make_alltoall(set, input, std::move(splits), std::move(allocate), options));
}

void alltoall(const TensorView& input, std::vector<std::int64_t> splits, AllocateRows allocate,
              const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  run(set, make_alltoall(set, input, std::move(splits), std::move(allocate), options));
}

// --- meetings ---

Handle barrier_async(const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  return submit(set, make_operation(set, Collective::Barrier, options));
}

void barrier(const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  run(set, make_operation(set, Collective::Barrier, options));
}

int join(ProcessSet* process_set) {
  ProcessSet& set = chosen(process_set);
  const auto operation = std::make_shared<Operation>();
  set.lane()->join(operation);
  Handle(set.lane(), operation).wait();
  return operation->result;
}

}  // namespace kolo
