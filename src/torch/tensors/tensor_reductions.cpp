#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kolo/error.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "torch/tensors/differentiable.hpp"
#include "torch/tensors/tensor_memory.hpp"
#include "torch/tensors/tensor_operation.hpp"

namespace kolo {
namespace {

using tensors::keeping;
using tensors::Tensors;

std::vector<InputOutput> views(const Tensors& inputs, const Tensors& outputs,
                               Collective collective) {
  std::vector<InputOutput> pairs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    pairs.push_back({tensors::view_of(inputs[i], name_of(collective)),
                     tensors::view_of(outputs[i], name_of(collective))});
  }
  return pairs;
}

Tensors both(Tensors inputs, const Tensors& outputs) {
  inputs.insert(inputs.end(), outputs.begin(), outputs.end());
  return inputs;
}

/// Only sums and their multiples have a gradient.
void check_has_gradient(const AllreduceOptions& options, Collective collective) {
  if (options.op == ReduceOp::Sum || options.op == ReduceOp::Average) return;
  throw InvalidArgument(std::string(name_of(collective)) + " '" + options.name +
                        "': the reduction " + std::string(name_of(options.op)) +
                        " has no gradient. Use Sum or Average, or detach the tensor first.");
}

}  // namespace

// --- allreduce ---

TensorsHandle grouped_allreduce_async(const Tensors& tensors, const AllreduceOptions& options) {
  if (std::string problem = tensors::problem_with(tensors); !problem.empty()) {
    return tensors::refused<Tensors>(Collective::AllReduce, std::move(problem),
                                     options.operation());
  }
  const AllreduceOptions forward = tensors::resolved(options, Collective::AllReduce);
  const tensors::Recording recording(tensors, *forward.process_set);
  const Tensors inputs = tensors::contiguous(tensors);
  Tensors outputs;
  for (const at::Tensor& input : inputs) outputs.push_back(at::empty_like(input));
  Handle handle = grouped_allreduce_async(views(inputs, outputs, Collective::AllReduce),
                                          keeping(forward, both(inputs, outputs)));
  return {std::move(handle), tensors::after_operation(inputs, [outputs, recording, forward] {
            recording.finish(outputs, [forward](const Tensors& gradients) {
              check_has_gradient(forward, Collective::AllReduce);
              return grouped_allreduce(gradients, tensors::of_gradient(forward));
            });
            return outputs;
          })};
}

TensorsHandle grouped_allreduce_async_(const Tensors& tensors, const AllreduceOptions& options) {
  if (std::string problem = tensors::in_place_problem_with(tensors); !problem.empty()) {
    return tensors::refused<Tensors>(Collective::AllReduce, std::move(problem),
                                     options.operation());
  }
  const Tensors work = tensors::contiguous(tensors);
  const std::vector<InputOutput> pairs = views(work, work, Collective::AllReduce);
  const AllreduceOptions kept = keeping(options, work);
  const SharedBuffer* const shared = tensors::shared_memory_of(work);
  Handle handle = shared != nullptr ? allreduce_async(*shared, 0, pairs.front().input.count(),
                                                      pairs.front().input.dtype, kept)
                                    : grouped_allreduce_async(pairs, kept);
  return {std::move(handle), tensors::after_operation(work, [work, tensors] {
            tensors::write_back(work, tensors);
            return tensors;
          })};
}

Tensors grouped_allreduce(const Tensors& tensors, const AllreduceOptions& options) {
  return grouped_allreduce_async(tensors, options).result();
}

void grouped_allreduce_(const Tensors& tensors, const AllreduceOptions& options) {
  grouped_allreduce_async_(tensors, options).wait();
}

TensorHandle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  return tensors::single(grouped_allreduce_async({tensor}, options));
}

TensorHandle allreduce_async_(at::Tensor& tensor, const AllreduceOptions& options) {
  return tensors::single(grouped_allreduce_async_({tensor}, options));
}

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  return grouped_allreduce({tensor}, options).front();
}

at::Tensor& allreduce_(at::Tensor& tensor, const AllreduceOptions& options) {
  grouped_allreduce_({tensor}, options);
  return tensor;
}

// --- reduce_scatter ---

namespace {

Tensors gather_gradients(const Tensors& gradients, const AllreduceOptions& forward) {
  check_has_gradient(forward, Collective::ReduceScatter);
  double factor = forward.prescale * forward.postscale;
  if (forward.op == ReduceOp::Sum) factor *= forward.process_set->size();
  const GatherOptions backward{.name = tensors::of_gradient(forward).name,
                               .timeout = forward.timeout,
                               .process_set = forward.process_set,
                               .gradient = GatherGradient::Sum};
  Tensors scaled;
  for (const at::Tensor& gradient : gradients) {
    scaled.push_back(factor == 1.0 ? gradient : gradient.mul(factor));
  }
  return grouped_allgather(scaled, backward);
}

}  // namespace

TensorsHandle grouped_reduce_scatter_async(const Tensors& tensors,
                                           const AllreduceOptions& options) {
  if (std::string problem = tensors::problem_with(tensors); !problem.empty()) {
    return tensors::refused<Tensors>(Collective::ReduceScatter, std::move(problem),
                                     options.operation());
  }
  const AllreduceOptions forward = tensors::resolved(options, Collective::ReduceScatter);
  const ProcessSet& set = *forward.process_set;
  const tensors::Recording recording(tensors, set);
  const Tensors inputs = tensors::contiguous(tensors);
  Tensors outputs;
  for (const at::Tensor& input : inputs) {
    std::vector<std::int64_t> shape = input.sizes().vec();
    if (!shape.empty()) shape.front() = scattered_rows(shape.front(), set.size(), set.rank());
    outputs.push_back(at::empty(shape, input.options()));
  }
  const std::vector<InputOutput> pairs = views(inputs, outputs, Collective::ReduceScatter);
  const AllreduceOptions kept = keeping(forward, both(inputs, outputs));
  const SharedBuffer* const shared = tensors::shared_memory_of(inputs);
  Handle handle = shared != nullptr ? reduce_scatter_async(*shared, 0, pairs.front().input.shape,
                                                           pairs.front().output, kept)
                                    : grouped_reduce_scatter_async(pairs, kept);
  return {std::move(handle), tensors::after_operation(inputs, [outputs, recording, forward] {
            recording.finish(outputs, [forward](const Tensors& gradients) {
              return gather_gradients(gradients, forward);
            });
            return outputs;
          })};
}

Tensors grouped_reduce_scatter(const Tensors& tensors, const AllreduceOptions& options) {
  return grouped_reduce_scatter_async(tensors, options).result();
}

TensorHandle reduce_scatter_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  return tensors::single(grouped_reduce_scatter_async({tensor}, options));
}

at::Tensor reduce_scatter(const at::Tensor& tensor, const AllreduceOptions& options) {
  return grouped_reduce_scatter({tensor}, options).front();
}

}  // namespace kolo
