#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/algorithm.hpp"
#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "kolo/torch/program_stream.hpp"
#include "kolo/torch/tensor_handle.hpp"
#include "runtime/api/collectives.hpp"
#include "train/tensors/graph_node.hpp"

namespace kolo::train {

/// Common parts of the collectives on tensors: they work on contiguous, detached tensors, and copy
/// the results to the caller's at the end.

using Tensors = std::vector<at::Tensor>;

/// The current stream of a group's device.
ProgramStream stream_of(const Tensors& tensors);

/// A contiguous tensor of the same values, over the tensor's own memory if possible.
at::Tensor contiguous(const at::Tensor& tensor);
Tensors contiguous(const Tensors& tensors);

/// Copies `results`, computed in contiguous(tensors), to `tensors` if they are in other memory, and
/// bumps the versions that autograd checks.
void write_back(const Tensors& results, const Tensors& tensors);

/// The options with an owner of the tensors, since an operation outlives its handle, and with the
/// current stream.
template <class Options>
Options keep_alive(Options options, Tensors tensors) {
  using Owners = std::pair<std::shared_ptr<void>, Tensors>;
  options.stream = stream_of(tensors).handle();
  options.keep_alive = std::make_shared<Owners>(std::move(options.keep_alive), std::move(tensors));
  return options;
}

/// The options with the operation's process set and name, for its gradient.
template <class Options>
Options resolve(Options options, Collective collective) {
  ProcessSet& set = member_set(options.process_set);
  options.process_set = &set;
  if (options.name.empty()) options.name = set.next_name(name_of(collective));
  return options;
}

/// The options of the gradient of an operation with resolved options.
template <class Options>
Options of_gradient(Options options) {
  options.name += ".gradient";
  return options;
}

/// Submits an operation that ends with InvalidArgument and `problem` on all ranks.
template <class Result>
ResultHandle<Result> submit_invalid(Collective collective, std::string problem,
                                    const OperationOptions& options) {
  return {runtime::submit_invalid(collective, std::move(problem), options), {}};
}

/// Wraps `finish`, which makes the result of an operation on `tensors`: orders the stream that is
/// current now, and thus the operation, before the stream that is current when `finish` runs.
template <class Finish>
auto after_operation(const Tensors& tensors, Finish finish) {
  return [stream = stream_of(tensors), finish = std::move(finish)] {
    stream.order_before_current();
    return finish();
  };
}

inline TensorHandle only_tensor(TensorsHandle group) {
  return std::move(group).then([](const Tensors& tensors) { return tensors.front(); });
}

/// Whether autograd must record an operation on these tensors.
bool needs_gradient(const Tensors& inputs);

/// Maps the gradients of an operation's floating-point outputs, in order, to those of the inputs at
/// the same indices. Gradients of outputs that the loss does not depend on are passed as zeros:
/// backward communicates, so all ranks must make the same calls.
using Gradient = std::function<Tensors(const Tensors& gradients)>;

/// Records an operation for autograd, if it must. Made when the operation is submitted: the inputs
/// may change afterwards, and backward communicates in the reverse order of the calls.
class Recording {
 public:
  /// The graph keeps `set` alive.
  Recording(const Tensors& inputs, const ProcessSet& set);

  /// Makes the floating-point tensors among the new `outputs`, as many as there were inputs, the
  /// results of the inputs.
  void finish(const Tensors& outputs, Gradient gradient) const;

 private:
  NodeOwner node_;  // null: nothing to record
};

}  // namespace kolo::train
