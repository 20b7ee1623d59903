#include "kolo/collectives.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "kolo/error.hpp"
#include "runtime/submit.hpp"

namespace kolo {

using runtime::chosen;
using runtime::make_operation;
using runtime::submit;

Handle allreduce_async(const TensorView& input, const TensorView& output,
                       const AllreduceOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  return submit(set, runtime::make_all_reduce(set, input, output, options));
}

void allreduce(const TensorView& input, const TensorView& output, const AllreduceOptions& options) {
  allreduce_async(input, output, options).wait();
}

Handle broadcast_async(const TensorView& tensor, int root, const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  auto operation = make_operation(set, Collective::Broadcast, tensor, options);
  operation->request.root = root;
  const std::vector<int>& ranks = set.ranks();
  if (!std::binary_search(ranks.begin(), ranks.end(), root)) {
    throw InvalidArgument(describe(operation->request) + ": root rank " + std::to_string(root) +
                          " is not a member of process set " + set.name() +
                          ". Roots are world ranks.");
  }
  operation->output = static_cast<std::byte*>(tensor.data);
  return submit(set, std::move(operation));
}

void broadcast(const TensorView& tensor, int root, const OperationOptions& options) {
  broadcast_async(tensor, root, options).wait();
}

Handle allgather_async(const TensorView& input, AllocateRows allocate,
                       const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  auto operation = make_operation(set, Collective::AllGather, input, options);
  runtime::Request& request = operation->request;
  if (request.shape.empty()) {
    throw InvalidArgument(describe(request) +
                          ": a scalar has no rows to gather. Give it one dimension, [1].");
  }
  operation->row_count = request.shape.front();
  request.shape.erase(request.shape.begin());
  operation->input = static_cast<const std::byte*>(input.data);
  operation->allocate_output = [allocate =
                                    std::move(allocate)](const std::vector<std::int64_t>& rows) {
    return static_cast<std::byte*>(allocate(rows));
  };
  return submit(set, std::move(operation));
}

void allgather(const TensorView& input, AllocateRows allocate, const OperationOptions& options) {
  allgather_async(input, std::move(allocate), options).wait();
}

}  // namespace kolo
