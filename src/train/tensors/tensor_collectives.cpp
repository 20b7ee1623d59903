#include "train/tensors/tensor_collectives.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/shared_buffer.hpp"
#include "kolo/torch/shared_tensor.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "runtime/api/collectives.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {

ProgramStream stream_of(const Tensors& tensors) {
  return tensors.empty() ? ProgramStream() : ProgramStream::current(tensors.front().device());
}

at::Tensor contiguous(const at::Tensor& tensor) {
  const at::Tensor own = tensor.detach().resolve_neg().resolve_conj().contiguous();
  // The memory of such a parameter will be reused.
  return is_gathered_on_use(own) ? own.clone() : own;
}

Tensors contiguous(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) all.push_back(contiguous(tensor));
  return all;
}

void write_back(const Tensors& results, const Tensors& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!results[i].is_alias_of(tensors[i])) {
      tensors[i].detach().copy_(results[i]);
    } else if (!tensors[i].is_inference()) {
      tensors[i].unsafeGetTensorImpl()->bump_version();
    }
  }
}

namespace {

namespace autograd = torch::autograd;

class GradientNode : public autograd::Node {
 public:
  explicit GradientNode(const ProcessSet& set) : set_(set.shared_from_this()) {}

  std::string name() const override { return "KoloBackward"; }
  void set_gradient(Gradient gradient) { gradient_ = std::move(gradient); }

 protected:
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) {
        gradients[i] = input_metadata(static_cast<std::uint32_t>(i)).zeros_like();
      }
    }
    return gradient_(gradients);
  }

 private:
  const std::shared_ptr<const ProcessSet> set_;
  Gradient gradient_;
};

}  // namespace

bool needs_gradient(const Tensors& inputs) {
  return c10::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
           return input.defined() && input.requires_grad();
         });
}

Recording::Recording(const Tensors& inputs, const ProcessSet& set) {
  if (!needs_gradient(inputs)) return;
  node_ = make_node<GradientNode>(set);
  for (const at::Tensor& input : inputs) {
    if (!autograd::isDifferentiableType(input.scalar_type())) continue;
    node_->add_next_edge(autograd::impl::gradient_edge(input));
  }
}

void Recording::finish(const Tensors& outputs, Gradient gradient) const {
  if (node_ == nullptr) return;
  static_cast<GradientNode&>(*node_).set_gradient(std::move(gradient));
  for (const at::Tensor& output : outputs) {
    if (autograd::isDifferentiableType(output.scalar_type())) autograd::set_history(output, node_);
  }
}

}  // namespace kolo::train

namespace kolo {
namespace {

using train::keep_alive;
using train::Tensors;

std::vector<InputOutput> views(const Tensors& inputs, const Tensors& outputs,
                               Collective collective) {
  std::vector<InputOutput> pairs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    pairs.push_back({train::view_of(inputs[i], name_of(collective)),
                     train::view_of(outputs[i], name_of(collective))});
  }
  return pairs;
}

Tensors concatenate(Tensors inputs, const Tensors& outputs) {
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
  if (std::string problem = train::problem_with(tensors); !problem.empty()) {
    return train::submit_invalid<Tensors>(Collective::AllReduce, std::move(problem),
                                          options.operation());
  }
  const AllreduceOptions forward = train::resolve(options, Collective::AllReduce);
  const train::Recording recording(tensors, *forward.process_set);
  const Tensors inputs = train::contiguous(tensors);
  Tensors outputs;
  for (const at::Tensor& input : inputs) outputs.push_back(at::empty_like(input));
  Handle handle = grouped_allreduce_async(views(inputs, outputs, Collective::AllReduce),
                                          keep_alive(forward, concatenate(inputs, outputs)));
  return {std::move(handle), train::after_operation(inputs, [outputs, recording, forward] {
            recording.finish(outputs, [forward](const Tensors& gradients) {
              check_has_gradient(forward, Collective::AllReduce);
              return grouped_allreduce(gradients, train::of_gradient(forward));
            });
            return outputs;
          })};
}

TensorsHandle grouped_allreduce_async_(const Tensors& tensors, const AllreduceOptions& options) {
  if (std::string problem = train::in_place_problem_with(tensors); !problem.empty()) {
    return train::submit_invalid<Tensors>(Collective::AllReduce, std::move(problem),
                                          options.operation());
  }
  const Tensors work = train::contiguous(tensors);
  const std::vector<InputOutput> pairs = views(work, work, Collective::AllReduce);
  const AllreduceOptions kept = keep_alive(options, work);
  const SharedBuffer* const shared = train::shared_memory_of(work);
  Handle handle = shared != nullptr ? allreduce_async(*shared, 0, pairs.front().input.count(),
                                                      pairs.front().input.dtype, kept)
                                    : grouped_allreduce_async(pairs, kept);
  return {std::move(handle), train::after_operation(work, [work, tensors] {
            train::write_back(work, tensors);
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
  return train::only_tensor(grouped_allreduce_async({tensor}, options));
}

TensorHandle allreduce_async_(at::Tensor& tensor, const AllreduceOptions& options) {
  return train::only_tensor(grouped_allreduce_async_({tensor}, options));
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
  const GatherOptions backward{.name = train::of_gradient(forward).name,
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
  if (std::string problem = train::problem_with(tensors); !problem.empty()) {
    return train::submit_invalid<Tensors>(Collective::ReduceScatter, std::move(problem),
                                          options.operation());
  }
  const AllreduceOptions forward = train::resolve(options, Collective::ReduceScatter);
  const ProcessSet& set = *forward.process_set;
  const train::Recording recording(tensors, set);
  const Tensors inputs = train::contiguous(tensors);
  Tensors outputs;
  for (const at::Tensor& input : inputs) {
    std::vector<std::int64_t> shape = input.sizes().vec();
    if (!shape.empty()) shape.front() = scattered_rows(shape.front(), set.size(), set.rank());
    outputs.push_back(at::empty(shape, input.options()));
  }
  const std::vector<InputOutput> pairs = views(inputs, outputs, Collective::ReduceScatter);
  const AllreduceOptions kept = keep_alive(forward, concatenate(inputs, outputs));
  const SharedBuffer* const shared = train::shared_memory_of(inputs);
  Handle handle = shared != nullptr ? reduce_scatter_async(*shared, 0, pairs.front().input.shape,
                                                           pairs.front().output, kept)
                                    : grouped_reduce_scatter_async(pairs, kept);
  return {std::move(handle), train::after_operation(inputs, [outputs, recording, forward] {
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
  return train::only_tensor(grouped_reduce_scatter_async({tensor}, options));
}

at::Tensor reduce_scatter(const at::Tensor& tensor, const AllreduceOptions& options) {
  return grouped_reduce_scatter({tensor}, options).front();
}

namespace {

using train::Tensors;

using Received = std::shared_ptr<AlltoallResult>;

/// Allocates the tensor for the rows that arrive, on the submitting thread's stream.
AllocateRows allocate_in(Received place, const at::Tensor& input) {
  return [place = std::move(place), shape = input.sizes().vec(), options = input.options(),
          stream = ProgramStream::current(input.device())](
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
    GatherOptions backward = train::of_gradient(forward);
    if (gradients.size() > 1) backward.name.append(".").append(std::to_string(i));
    reduced.push_back(reduce_rows(gradients[i], rows[i], backward));
  }
  return reduced;
}

}  // namespace

// --- allgather ---

TensorsHandle grouped_allgather_async(const Tensors& tensors, const GatherOptions& options) {
  if (std::string problem = train::problem_with(tensors); !problem.empty()) {
    return train::submit_invalid<Tensors>(Collective::AllGather, std::move(problem),
                                          options.operation());
  }
  const GatherOptions forward = train::resolve(options, Collective::AllGather);
  const train::Recording recording(tensors, *forward.process_set);
  const Tensors inputs = train::contiguous(tensors);
  std::vector<Received> places;
  std::vector<InputRows> rows;
  for (const at::Tensor& input : inputs) {
    places.push_back(std::make_shared<AlltoallResult>());
    rows.push_back({train::view_of(input, "allgather"), allocate_in(places.back(), input)});
  }
  Handle handle =
      grouped_allgather_async(std::move(rows), train::keep_alive(forward.operation(), inputs));
  return {std::move(handle), train::after_operation(inputs, [places, recording, forward] {
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
  return train::only_tensor(grouped_allgather_async({tensor}, options));
}

at::Tensor allgather(const at::Tensor& tensor, const GatherOptions& options) {
  return grouped_allgather({tensor}, options).front();
}

// --- alltoall ---

AlltoallHandle alltoall_async(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                              const OperationOptions& options) {
  if (std::string problem = train::problem_with(tensor); !problem.empty()) {
    return train::submit_invalid<AlltoallResult>(Collective::AllToAll, std::move(problem), options);
  }
  const OperationOptions forward = train::resolve(options, Collective::AllToAll);
  const train::Recording recording({tensor}, *forward.process_set);
  const at::Tensor input = train::contiguous(tensor);
  const auto place = std::make_shared<AlltoallResult>();
  const TensorView view = train::view_of(input, "alltoall");
  const OperationOptions kept = train::keep_alive(forward, {input});
  const SharedBuffer* const shared = train::shared_memory_of(input);
  Handle handle = shared != nullptr ? alltoall_async(*shared, 0, view.shape, view.dtype, splits,
                                                     allocate_in(place, input), kept)
                                    : alltoall_async(view, splits, allocate_in(place, input), kept);
  return {std::move(handle), train::after_operation({input}, [place, recording, forward] {
            recording.finish({place->output}, [forward, rows = place->received_splits](
                                                  const Tensors& gradients) {
              return Tensors{alltoall(gradients.front(), rows, train::of_gradient(forward)).output};
            });
            return *place;
          })};
}

AlltoallResult alltoall(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                        const OperationOptions& options) {
  return alltoall_async(tensor, splits, options).result();
}

namespace {

using train::Tensors;

Handle start(const Tensors& work, int root, const OperationOptions& options) {
  std::vector<TensorView> views;
  for (const at::Tensor& tensor : work) views.push_back(train::view_of(tensor, "broadcast"));
  const OperationOptions kept = train::keep_alive(options, work);
  if (const SharedBuffer* const shared = train::shared_memory_of(work)) {
    return broadcast_async(*shared, 0, views.front().count(), views.front().dtype, root, kept);
  }
  return grouped_broadcast_async(views, root, kept);
}

Tensors mean_on_root(const Tensors& gradients, int root, const OperationOptions& forward) {
  const AllreduceOptions backward{.op = ReduceOp::Average,
                                  .name = train::of_gradient(forward).name,
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
  if (std::string problem = train::problem_with(tensors); !problem.empty()) {
    return train::submit_invalid<Tensors>(Collective::Broadcast, std::move(problem), options);
  }
  const OperationOptions forward = train::resolve(options, Collective::Broadcast);
  const train::Recording recording(tensors, *forward.process_set);
  const bool is_root = forward.process_set->runtime().rank() == root;
  Tensors outputs;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor output = at::empty_like(tensor.detach(), at::MemoryFormat::Contiguous);
    if (is_root) output.copy_(tensor.detach());
    outputs.push_back(std::move(output));
  }
  Handle handle = start(outputs, root, forward);
  return {std::move(handle), train::after_operation(outputs, [outputs, recording, forward, root] {
            recording.finish(outputs, [forward, root](const Tensors& gradients) {
              return mean_on_root(gradients, root, forward);
            });
            return outputs;
          })};
}

TensorsHandle grouped_broadcast_async_(const Tensors& tensors, int root,
                                       const OperationOptions& options) {
  if (std::string problem = train::in_place_problem_with(tensors); !problem.empty()) {
    return train::submit_invalid<Tensors>(Collective::Broadcast, std::move(problem), options);
  }
  const Tensors work = train::contiguous(tensors);
  Handle handle = start(work, root, options);
  return {std::move(handle), train::after_operation(work, [work, tensors] {
            train::write_back(work, tensors);
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
  return train::only_tensor(grouped_broadcast_async({tensor}, root, options));
}

TensorHandle broadcast_async_(at::Tensor& tensor, int root, const OperationOptions& options) {
  return train::only_tensor(grouped_broadcast_async_({tensor}, root, options));
}

at::Tensor broadcast(const at::Tensor& tensor, int root, const OperationOptions& options) {
  return grouped_broadcast({tensor}, root, options).front();
}

at::Tensor& broadcast_(at::Tensor& tensor, int root, const OperationOptions& options) {
  grouped_broadcast_({tensor}, root, options);
  return tensor;
}

namespace {

using runtime::Operation;
using train::Tensors;

std::string problem_with(const at::Tensor& tensor, const AllreduceOptions& options) {
  if (!tensor.defined()) return "the tensor is undefined";
  if (tensor.layout() != at::kSparse) {
    return "the tensor is not a sparse COO tensor. Use tensor.to_sparse(), or allreduce.";
  }
  if (std::string problem = train::problem_with(tensor._values()); !problem.empty()) return problem;
  if (c10::GradMode::is_enabled() && tensor.requires_grad()) {
    return "sparse_allreduce has no gradient. Use tensor.detach(), or "
           "allreduce(tensor.to_dense()).";
  }
  if (options.op != ReduceOp::Sum && options.op != ReduceOp::Average) {
    return "sparse tensors support Sum and Average only, not " + std::string(name_of(options.op));
  }
  if (options.compression != Compression::none()) {
    return "sparse tensors support no compression";
  }
  const bool is_scaled =
      options.op == ReduceOp::Average || options.prescale != 1.0 || options.postscale != 1.0;
  if (is_scaled && !tensor.is_floating_point() && !tensor.is_complex()) {
    return "sparse tensors of integers support plain Sum only";
  }
  if (tensor.scalar_type() == at::kBool) return "bool cannot be summed";
  return {};
}

/// Gathers the rows of a tensor, which the operation keeps alive.
void add_gather(Operation& operation, const at::Tensor& input, Received place) {
  runtime::add_rows(operation, train::view_of(input, "sparse_allreduce"),
                    allocate_in(std::move(place), input));
}

/// Adds two gathers without data. The first gathers no rows of `shape`, so all ranks must agree on
/// it. The second gathers one empty row per rank: `ranks` becomes the number of participants.
void add_agreement(Operation& operation, std::vector<std::int64_t> shape, Device device,
                   const std::shared_ptr<std::int64_t>& ranks) {
  shape.insert(shape.begin(), 0);
  const TensorView no_rows{nullptr, DType::UInt8, std::move(shape), device};
  runtime::add_rows(operation, no_rows, [](const auto&) { return nullptr; });
  const TensorView empty_row{nullptr, DType::UInt8, {1, 0}, device};
  runtime::add_rows(operation, empty_row, [ranks](const auto& rows) {
    *ranks = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    return nullptr;
  });
}

struct Gathered {
  std::shared_ptr<std::int64_t> ranks = std::make_shared<std::int64_t>();
  Received indices = std::make_shared<AlltoallResult>();
  Received values = std::make_shared<AlltoallResult>();
};

}  // namespace

// An all-gather of indices and values whose request has the fields of a reduction, so that ranks
// that disagree about those get an error.
TensorHandle sparse_allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  ProcessSet& set = member_set(options.process_set);
  OperationOptions common{options.name, options.timeout, &set, options.keep_alive};
  if (common.name.empty()) common.name = set.next_name("sparse_allreduce");
  if (std::string problem = problem_with(tensor, options); !problem.empty()) {
    return train::submit_invalid<at::Tensor>(Collective::AllGather, std::move(problem), common);
  }
  const at::Tensor own = tensor.detach().coalesce();
  const at::Tensor indices = own.indices().t().contiguous();  // one row for each entry, like values
  const at::Tensor values = own.values().contiguous();
  const std::vector<std::int64_t> shape = own.sizes().vec();
  runtime::Submission submission =
      runtime::make_operation(Collective::AllGather, train::keep_alive(common, {indices, values}));
  const auto& operation = submission.operation;
  operation->request.op = options.op;
  operation->request.prescale = options.prescale;
  operation->request.postscale = options.postscale;
  operation->request.join_divisor = options.join_divisor;
  const Gathered all;
  add_agreement(*operation, shape, train::device_of(values.device()), all.ranks);
  add_gather(*operation, indices, all.indices);
  add_gather(*operation, values, all.values);

  auto finish = [all, options, shape, size = set.size()] {
    double factor = options.prescale * options.postscale;
    if (options.op == ReduceOp::Average) {
      const bool is_world = options.join_divisor == JoinDivisor::World;
      factor /= static_cast<double>(is_world ? size : *all.ranks);
    }
    if (factor != 1.0) all.values->output.mul_(factor);
    return at::sparse_coo_tensor(all.indices->output.t(), all.values->output, shape);
  };
  Handle handle = runtime::submit(std::move(submission));
  return {std::move(handle), train::after_operation({values}, std::move(finish))};
}

at::Tensor sparse_allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  return sparse_allreduce_async(tensor, options).result();
}

namespace {

std::string problem_with(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) {
    return "shared memory is that of the CPU, not that of " + options.device().str();
  }
  if (std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size < 0; })) {
    return "a dimension of the tensor is negative";
  }
  return train::problem_with(at::empty({0}, options.requires_grad(false)));
}

}  // namespace

at::Tensor shared_empty(at::IntArrayRef sizes, const at::TensorOptions& options,
                        const OperationOptions& operation) {
  if (const std::string problem = problem_with(sizes, options); !problem.empty()) {
    refuse(Collective::ShareMemory, problem, operation);
  }
  const at::Tensor tensor = at::empty({0}, options.requires_grad(false));
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes) * tensor.element_size());
  const c10::Storage storage =
      train::storage_over(SharedBuffer(std::max(bytes, std::size_t{1}), operation), bytes);
  return tensor.set_(storage, 0, sizes).requires_grad_(options.requires_grad());
}

bool is_shared(const at::Tensor& tensor) {
  const SharedBuffer* const memory = train::shared_memory_of(tensor);
  return memory != nullptr && memory->is_shared();
}

}  // namespace kolo
