#include "kolo/collectives.hpp"

#include <memory>
#include <string>
#include <utility>

#include "kolo/error.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/api/submit.hpp"
#include "runtime/lane/lane.hpp"

namespace kolo {

using runtime::make_allgather;
using runtime::make_alltoall;
using runtime::make_broadcast;
using runtime::make_operation;
using runtime::make_reduction;
using runtime::Outputs;
using runtime::run;
using runtime::submit;

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
  return submit(make_reduction(Collective::AllReduce, tensors, options));
}

void grouped_allreduce(const std::vector<InputOutput>& tensors, const AllreduceOptions& options) {
  run(make_reduction(Collective::AllReduce, tensors, options));
}

ElementRange encoded_between_nodes(std::int64_t count, ProcessSet* process_set) {
  if (count < 0) {
    throw InvalidArgument("encoded_between_nodes: a tensor of " + std::to_string(count) +
                          " elements. Give 0 or more.");
  }
  const ops::NodePlaces places = runtime::chosen(process_set).lane()->node_places();
  const ops::Range piece = places.own_piece(static_cast<std::size_t>(count));
  return {static_cast<std::int64_t>(piece.begin), static_cast<std::int64_t>(piece.length)};
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
  return submit(make_reduction(Collective::ReduceScatter, tensors, options));
}

void grouped_reduce_scatter(const std::vector<InputOutput>& tensors,
                            const AllreduceOptions& options) {
  run(make_reduction(Collective::ReduceScatter, tensors, options));
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
  return submit(make_broadcast(tensors, root, options));
}

void grouped_broadcast(const std::vector<TensorView>& tensors, int root,
                       const OperationOptions& options) {
  run(make_broadcast(tensors, root, options));
}

// --- all-gather and all-to-all ---

Handle allgather_async(const TensorView& input, AllocateRows allocate,
                       const OperationOptions& options) {
  return grouped_allgather_async({{input, std::move(allocate)}}, options);
}

void allgather(const TensorView& input, AllocateRows allocate, const OperationOptions& options) {
  grouped_allgather({{input, std::move(allocate)}}, options);
}

Handle grouped_allgather_async(std::vector<InputRows> tensors, const OperationOptions& options) {
  return submit(make_allgather(std::move(tensors), Outputs::PerRank, options));
}

void grouped_allgather(std::vector<InputRows> tensors, const OperationOptions& options) {
  run(make_allgather(std::move(tensors), Outputs::PerRank, options));
}

Handle alltoall_async(const TensorView& input, std::vector<std::int64_t> splits,
                      AllocateRows allocate, const OperationOptions& options) {
  return submit(make_alltoall(input, std::move(splits), std::move(allocate), options));
}

void alltoall(const TensorView& input, std::vector<std::int64_t> splits, AllocateRows allocate,
              const OperationOptions& options) {
  run(make_alltoall(input, std::move(splits), std::move(allocate), options));
}

// --- barrier and join ---

Handle barrier_async(const OperationOptions& options) {
  return submit(make_operation(Collective::Barrier, options));
}

void barrier(const OperationOptions& options) { run(make_operation(Collective::Barrier, options)); }

int join(ProcessSet* process_set) {
  ProcessSet& set = runtime::chosen(process_set);
  const auto operation = std::make_shared<runtime::Operation>();
  operation->role = runtime::OperationRole::Join;
  set.lane()->join(operation);
  Handle(set.lane(), operation).wait();
  return operation->last_joined;
}

}  // namespace kolo
