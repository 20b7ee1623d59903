#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

#include "kolo/torch/tensor_collectives.hpp"
#include "torch/tensors/differentiable.hpp"
#include "torch/tensors/tensor_memory.hpp"
#include "torch/tensors/tensor_operation.hpp"

namespace kolo {
namespace {

using tensors::Tensors;

using Received = std::shared_ptr<AlltoallResult>;

/// Allocates the tensor for the rows that arrive, on the submitting thread's stream.
AllocateRows allocate_in(Received place, const at::Tensor& input) {
  return [place = std::move(place), shape = input.sizes().vec(), options = input.options(),
          stream = tensors::ProgramStream::current(input.device())](
             const std::vector<std::int64_t>& rows) mutable -> void* {
    const auto guard = stream.make_current();
    place->received_splits = rows;
    shape.front() = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    place->output = at::empty(shape, options);
    return place->output.data_ptr();
  };
}

/// Sums or averages the gradients that all ranks send for this rank's rows.
at::Tensor reduce_rows(const at::Tensor& gradient, const std::vector<std::int64_t>& rows,
                       const GatherOptions& options) {
  const std::int64_t size = options.process_set->size();
  std::vector<std::int64_t> shape = gradient.sizes().vec();
  shape.front() = rows[static_cast<std::size_t>(options.process_set->rank())];
  shape.insert(shape.begin(), size);
  const at::Tensor all = alltoall(gradient, rows, options.operation()).output.reshape(shape);
  // A sum of 16-bit numbers may overflow where their mean does not.
  const at::ScalarType type = gradient.scalar_type();
  const at::ScalarType wide = at::isReducedFloatingType(type) ? at::kFloat : type;
  const at::Tensor sum = all.sum(0, /*keepdim=*/false, wide);
  return (options.gradient == GatherGradient::Average ? sum.div(size) : sum).to(type);
}

/// Sends each rank the gradients of its rows, `rows` of each tensor.
Tensors scatter_gradients(const Tensors& gradients,
                          const std::vector<std::vector<std::int64_t>>& rows,
                          const GatherOptions& forward) {
  Tensors reduced;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    GatherOptions backward = tensors::of_gradient(forward);
    if (gradients.size() > 1) backward.name.append(".").append(std::to_string(i));
    reduced.push_back(reduce_rows(gradients[i], rows[i], backward));
  }
  return reduced;
}

}  // namespace

// --- allgather ---

TensorsHandle grouped_allgather_async(const Tensors& tensors, const GatherOptions& options) {
  if (std::string problem = tensors::problem_with(tensors); !problem.empty()) {
    return tensors::refused<Tensors>(Collective::AllGather, std::move(problem),
                                     options.operation());
  }
  const GatherOptions forward = tensors::resolved(options, Collective::AllGather);
  const tensors::Recording recording(tensors, *forward.process_set);
  const Tensors inputs = tensors::contiguous(tensors);
  std::vector<Received> places;
  std::vector<InputRows> rows;
  for (const at::Tensor& input : inputs) {
    places.push_back(std::make_shared<AlltoallResult>());
    rows.push_back({tensors::view_of(input, "allgather"), allocate_in(places.back(), input)});
  }
  Handle handle =
      grouped_allgather_async(std::move(rows), tensors::keeping(forward.operation(), inputs));
  return {std::move(handle), tensors::after_operation(inputs, [places, recording, forward] {
            Tensors outputs;
            std::vector<std::vector<std::int64_t>> rows_of;  // of tensors with a gradient
            for (const Received& place : places) {
              outputs.push_back(place->output);
              if (!torch::autograd::isDifferentiableType(place->output.scalar_type())) continue;
              rows_of.push_back(place->received_splits);
            }
            recording.finish(outputs, [forward, rows_of](const Tensors& gradients) {
              return scatter_gradients(gradients, rows_of, forward);
            });
            return outputs;
          })};
}

Tensors grouped_allgather(const Tensors& tensors, const GatherOptions& options) {
  return grouped_allgather_async(tensors, options).result();
}

TensorHandle allgather_async(const at::Tensor& tensor, const GatherOptions& options) {
  return tensors::single(grouped_allgather_async({tensor}, options));
}

at::Tensor allgather(const at::Tensor& tensor, const GatherOptions& options) {
  return grouped_allgather({tensor}, options).front();
}

// --- alltoall ---

AlltoallHandle alltoall_async(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                              const OperationOptions& options) {
  if (std::string problem = tensors::problem_with(tensor); !problem.empty()) {
    return tensors::refused<AlltoallResult>(Collective::AllToAll, std::move(problem), options);
  }
  const OperationOptions forward = tensors::resolved(options, Collective::AllToAll);
  const tensors::Recording recording({tensor}, *forward.process_set);
  const at::Tensor input = tensors::contiguous(tensor);
  const auto place = std::make_shared<AlltoallResult>();
  const TensorView view = tensors::view_of(input, "alltoall");
  const OperationOptions kept = tensors::keeping(forward, {input});
  const SharedBuffer* const shared = tensors::shared_memory_of(input);
  Handle handle = shared != nullptr ? alltoall_async(*shared, 0, view.shape, view.dtype, splits,
                                                     allocate_in(place, input), kept)
                                    : alltoall_async(view, splits, allocate_in(place, input), kept);
  return {
      std::move(handle), tensors::after_operation({input}, [place, recording, forward] {
        recording.finish({place->output}, [forward, rows = place->received_splits](
                                              const Tensors& gradients) {
          return Tensors{alltoall(gradients.front(), rows, tensors::of_gradient(forward)).output};
        });
        return *place;
      })};
}

AlltoallResult alltoall(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                        const OperationOptions& options) {
  return alltoall_async(tensor, splits, options).result();
}

}  // namespace kolo
