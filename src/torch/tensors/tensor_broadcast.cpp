#include <string>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include "kolo/runtime.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "torch/tensors/differentiable.hpp"
#include "torch/tensors/tensor_memory.hpp"
#include "torch/tensors/tensor_operation.hpp"

namespace kolo {
namespace {

using tensors::Tensors;

Handle start(const Tensors& work, int root, const OperationOptions& options) {
  std::vector<TensorView> views;
  for (const at::Tensor& tensor : work) views.push_back(tensors::view_of(tensor, "broadcast"));
  const OperationOptions kept = tensors::keeping(options, work);
  if (const SharedBuffer* const shared = tensors::shared_memory_of(work)) {
    return broadcast_async(*shared, 0, views.front().count(), views.front().dtype, root, kept);
  }
  return grouped_broadcast_async(views, root, kept);
}

Tensors mean_on_root(const Tensors& gradients, int root, const OperationOptions& forward) {
  const AllreduceOptions backward{.op = ReduceOp::Average,
                                  .name = tensors::of_gradient(forward).name,
                                  .timeout = forward.timeout,
                                  .process_set = forward.process_set};
  Tensors means = grouped_allreduce(gradients, backward);
  if (forward.process_set->runtime().rank() == root) return means;
  // Zeros computed from the means, so that a second backward communicates on all ranks.
  const at::Tensor everywhere = at::ones({}, means.front().options().dtype(at::kBool));
  for (at::Tensor& mean : means) mean = mean.masked_fill(everywhere, 0);
  return means;
}

}  // namespace

TensorsHandle grouped_broadcast_async(const Tensors& tensors, int root,
                                      const OperationOptions& options) {
  if (std::string problem = tensors::problem_with(tensors); !problem.empty()) {
    return tensors::refused<Tensors>(Collective::Broadcast, std::move(problem), options);
  }
  const OperationOptions forward = tensors::resolved(options, Collective::Broadcast);
  const tensors::Recording recording(tensors, *forward.process_set);
  const bool is_root = forward.process_set->runtime().rank() == root;
  Tensors outputs;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor output = at::empty_like(tensor.detach(), at::MemoryFormat::Contiguous);
    if (is_root) output.copy_(tensor.detach());
    outputs.push_back(std::move(output));
  }
  Handle handle = start(outputs, root, forward);
  return {std::move(handle), tensors::after_operation(outputs, [outputs, recording, forward, root] {
            recording.finish(outputs, [forward, root](const Tensors& gradients) {
              return mean_on_root(gradients, root, forward);
            });
            return outputs;
          })};
}

TensorsHandle grouped_broadcast_async_(const Tensors& tensors, int root,
                                       const OperationOptions& options) {
  if (std::string problem = tensors::in_place_problem_with(tensors); !problem.empty()) {
    return tensors::refused<Tensors>(Collective::Broadcast, std::move(problem), options);
  }
  const Tensors work = tensors::contiguous(tensors);
  Handle handle = start(work, root, options);
  return {std::move(handle), tensors::after_operation(work, [work, tensors] {
            tensors::write_back(work, tensors);
            return tensors;
          })};
}

Tensors grouped_broadcast(const Tensors& tensors, int root, const OperationOptions& options) {
  return grouped_broadcast_async(tensors, root, options).result();
}

void grouped_broadcast_(const Tensors& tensors, int root, const OperationOptions& options) {
  grouped_broadcast_async_(tensors, root, options).wait();
}

TensorHandle broadcast_async(const at::Tensor& tensor, int root, const OperationOptions& options) {
  return tensors::single(grouped_broadcast_async({tensor}, root, options));
}

TensorHandle broadcast_async_(at::Tensor& tensor, int root, const OperationOptions& options) {
  return tensors::single(grouped_broadcast_async_({tensor}, root, options));
}

at::Tensor broadcast(const at::Tensor& tensor, int root, const OperationOptions& options) {
  return grouped_broadcast({tensor}, root, options).front();
}

at::Tensor& broadcast_(at::Tensor& tensor, int root, const OperationOptions& options) {
  grouped_broadcast_({tensor}, root, options);
  return tensor;
}

}  // namespace kolo
