#include "programs/calls.hpp"

#include <utility>
#include <vector>

namespace kolo::programs {
namespace {

AllreduceOptions reduction_options(const Operation& operation, ProcessSet& set,
                                   std::shared_ptr<void> owner) {
  return {.op = operation.op,
          .prescale = operation.prescale,
          .postscale = operation.postscale,
          .compression = Compression::named(operation.compression),
          .custom = operation.custom,
          .join_divisor = operation.join_divisor,
          .name = operation.name,
          .timeout = operation.timeout,
          .process_set = &set,
          .keep_alive = std::move(owner)};
}

Handle reduce(const Operation& operation, OperationMemory& memory,
              const AllreduceOptions& options) {
  if (operation.buffer >= 0) {
    return allreduce_async(*memory.buffer(), operation.offset_bytes, operation.tensors[0].count(),
                           operation.tensors[0].dtype, options);
  }
  const bool is_scattered = operation.collective == Collective::ReduceScatter;
  if (memory.tensor_count() == 1) {
    return is_scattered ? reduce_scatter_async(memory.input(0), memory.output(0), options)
                        : allreduce_async(memory.input(0), memory.output(0), options);
  }
  std::vector<InputOutput> tensors;
  for (std::size_t i = 0; i < memory.tensor_count(); ++i) {
    tensors.push_back({memory.input(i), memory.output(i)});
  }
  return is_scattered ? grouped_reduce_scatter_async(tensors, options)
                      : grouped_allreduce_async(tensors, options);
}

Handle broadcast(const Operation& operation, OperationMemory& memory,
                 const OperationOptions& options) {
  if (memory.tensor_count() == 1) return broadcast_async(memory.input(0), operation.root, options);
  std::vector<TensorView> tensors;
  for (std::size_t i = 0; i < memory.tensor_count(); ++i) tensors.push_back(memory.input(i));
  return grouped_broadcast_async(tensors, operation.root, options);
}

Handle gather(OperationMemory& memory, const OperationOptions& options) {
  if (memory.tensor_count() == 1) {
    return allgather_async(memory.input(0), memory.allocate(0), options);
  }
  std::vector<InputRows> tensors;
  for (std::size_t i = 0; i < memory.tensor_count(); ++i) {
    tensors.push_back({memory.input(i), memory.allocate(i)});
  }
  return grouped_allgather_async(std::move(tensors), options);
}

}  // namespace

Handle submit(const Operation& operation, OperationMemory& memory, ProcessSet& set,
              std::shared_ptr<void> owner) {
  const OperationOptions options{operation.name, operation.timeout, &set, owner};
  switch (operation.collective) {
    case Collective::AllReduce:
    case Collective::ReduceScatter:
      return reduce(operation, memory, reduction_options(operation, set, std::move(owner)));
    case Collective::Broadcast: return broadcast(operation, memory, options);
    case Collective::AllGather: return gather(memory, options);
    case Collective::AllToAll: {
      std::vector<std::int64_t> splits;
      if (!operation.equal_splits) {
        splits =
            operation.given_splits.value_or(operation.split[static_cast<std::size_t>(set.rank())]);
      }
      return alltoall_async(memory.input(0), std::move(splits), memory.allocate(0), options);
    }
    default: return barrier_async(options);
  }
}

}  // namespace kolo::programs
