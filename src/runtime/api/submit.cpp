#include "runtime/api/submit.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "base/deadline.hpp"
#include "kolo/error.hpp"
#include "runtime/api/operation_checks.hpp"
#include "runtime/lane/lane.hpp"

namespace kolo::runtime {
namespace {

/// Marks a request that no rank can run as invalid.
void check(const Submission& submission) {
  try {
    submission.set.lane()->check(submission.operation->request);
  } catch (const InvalidArgument& error) {
    add_invalid_reason(*submission.operation, error.what());
  }
}

/// Adds error feedback for the operation's only tensor.
void add_residual(const Submission& submission, float* residual, std::vector<UsedMemory>& used) {
  Operation& operation = *submission.operation;
  if (operation.tensors.size() != 1 || !submission.set.lane()->uses_codec(operation.request)) {
    add_invalid_reason(operation,
                       "a residual is for one floating tensor that a codec compresses. Pass none "
                       "for groups, other types and compression \"" +
                           operation.request.compression + "\".");
    return;
  }
  operation.tensors.front().residual = residual;
  std::size_t count = operation.request.tensors.front().count();
  if (operation.request.compression_scope == CompressionScope::BetweenNodes) {
    count = submission.set.lane()->node_places().own_piece(count).length;
  }
  used.front().residual = std::as_bytes(std::span(residual, count));
}

void prepare(const Submission& submission) {
  try {
    submission.set.lane()->prepare(*submission.operation);
  } catch (const Error& error) {
    add_invalid_reason(*submission.operation, error.what());
  }
}

}  // namespace

ProcessSet& chosen(ProcessSet* set) { return set != nullptr ? *set : Runtime::current().world(); }

std::string next_prefix(const ProcessSet& set, std::string_view kind) {
  return set.lane()->next_prefix(kind);
}

Submission make_operation(Collective collective, const OperationOptions& options) {
  ProcessSet& set = chosen(options.process_set);
  auto operation = std::make_shared<Operation>();
  Request& request = operation->request;
  request.collective = collective;
  request.name = options.name.empty() ? set.next_name(name_of(collective)) : options.name;
  const auto timeout = options.timeout.value_or(set.runtime().config().timeout);
  request.purpose = options.purpose;
  operation->deadline = Deadline::after(timeout).point();
  operation->keep_alive = options.keep_alive;
  operation->device.stream = static_cast<comm::DeviceStream>(options.stream);
  return {set, std::move(operation)};
}

TensorMemory& add_tensor(Operation& operation, const TensorView& tensor) {
  operation.request.tensors.push_back({tensor.dtype, tensor.shape});
  const bool is_first = operation.tensors.empty();
  if (!is_first && (operation.request.device != tensor.device.kind ||
                    operation.device.gpu != tensor.device.index)) {
    add_invalid_reason(operation, "the tensors of the group are on different devices");
  }
  operation.request.device = tensor.device.kind;
  operation.device.gpu = tensor.device.index;
  check_memory(operation, tensor);
  TensorMemory& memory = operation.tensors.emplace_back();
  memory.input = static_cast<const std::byte*>(tensor.data);
  return memory;
}

TensorMemory& add_rows(Operation& operation, const TensorView& tensor, AllocateRows allocate) {
  TensorMemory& memory = add_tensor(operation, tensor);
  if (allocate == nullptr) {
    add_invalid_reason(operation, "there is no AllocateRows. Give a function that returns memory.");
  }
  memory.allocate_output = std::move(allocate);
  if (tensor.shape.empty()) {
    add_invalid_reason(operation, "a scalar has no rows. Give it one dimension, [1].");
    return memory;
  }
  memory.row_count = tensor.shape.front();
  std::vector<std::int64_t>& shape = operation.request.tensors.back().shape;
  shape.erase(shape.begin());
  return memory;
}

void add_members(Operation& operation, const std::vector<int>& ranks, int world_size) {
  if (ranks.empty()) {
    add_invalid_reason(operation, "a process set needs at least one rank");
  } else if (ranks.front() < 0 || ranks.back() >= world_size) {
    const int wrong = ranks.front() < 0 ? ranks.front() : ranks.back();
    add_invalid_reason(operation, "there is no rank " + std::to_string(wrong) +
                                      "; ranks are 0 to " + std::to_string(world_size - 1));
  } else if (const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
             twice != ranks.end()) {
    add_invalid_reason(operation, "rank " + std::to_string(*twice) + " is named twice");
  } else {
    operation.request.members = ranks;
  }
}

Submission make_reduction(Collective collective, const std::vector<InputOutput>& tensors,
                          const AllreduceOptions& options) {
  Submission submission = make_operation(collective, options.operation());
  const auto& [set, operation] = submission;
  Request& request = operation->request;
  request.op = options.op;
  if (options.op == ReduceOp::Custom) request.custom = options.custom;
  request.prescale = options.prescale;
  request.postscale = options.postscale;
  request.join_divisor = options.join_divisor;
  request.compression = options.compression.name();
  request.compression_scope = options.compression_scope;
  if (collective == Collective::ReduceScatter && options.op == ReduceOp::Adasum) {
    add_invalid_reason(
        *operation,
        "Adasum needs whole tensors, so its result cannot be scattered. Use allreduce.");
  }
  std::vector<UsedMemory> used;
  for (const InputOutput& tensor : tensors) {
    add_tensor(*operation, tensor.input).output = static_cast<std::byte*>(tensor.output.data);
    check_reduction(*operation, tensor.input, options);
    check_output(*operation, tensor, set);
    used.push_back(used_memory(*operation, tensor, set));
  }
  check(submission);
  if (options.residual != nullptr) add_residual(submission, options.residual, used);
  check_overlap(*operation, used);
  return submission;
}

Submission make_allgather(std::vector<InputRows> tensors, Outputs outputs,
                          const OperationOptions& options) {
  Submission submission = make_operation(Collective::AllGather, options);
  for (InputRows& tensor : tensors) {
    add_rows(*submission.operation, tensor.input, std::move(tensor.allocate));
  }
  if (outputs == Outputs::PerNode) {
    submission.operation->request.placement = Request::kOncePerNode;
    check(submission);
  }
  return submission;
}

Submission make_broadcast(const std::vector<TensorView>& tensors, int root,
                          const OperationOptions& options) {
  Submission submission = make_operation(Collective::Broadcast, options);
  const auto& [set, operation] = submission;
  operation->request.root = root;
  const std::vector<int>& ranks = set.ranks();
  if (!std::binary_search(ranks.begin(), ranks.end(), root)) {
    add_invalid_reason(*operation,
                       "root rank " + std::to_string(root) +
                           " is not a member of the process set. Roots are world ranks.");
  }
  std::vector<UsedMemory> used;
  for (const TensorView& tensor : tensors) {
    add_tensor(*operation, tensor).output = static_cast<std::byte*>(tensor.data);
    used.push_back(used_memory(*operation, {tensor, tensor}, set));
  }
  check_overlap(*operation, used);
  return submission;
}

Submission make_sharing(std::size_t size_bytes, const OperationOptions& options) {
  Submission submission = make_operation(Collective::ShareMemory, options);
  const TensorView extent{
      &size_bytes, DType::UInt8, {static_cast<std::int64_t>(size_bytes)}, Device{}};
  check_memory(*submission.operation, extent);
  submission.operation->request.tensors = {{extent.dtype, extent.shape}};
  return submission;
}

std::shared_ptr<SharedWindow> make_node_window(std::size_t size_bytes,
                                               const OperationOptions& options) {
  const Submission submission = make_sharing(size_bytes, options);
  submission.operation->request.placement = Request::kOncePerNode;
  check(submission);
  submit(submission).wait();
  return submission.operation->shared_window;
}

Submission make_alltoall(const TensorView& input, std::vector<std::int64_t> splits,
                         AllocateRows allocate, const OperationOptions& options) {
  Submission submission = make_operation(Collective::AllToAll, options);
  const auto& [set, operation] = submission;
  TensorMemory& memory = add_rows(*operation, input, std::move(allocate));
  memory.send_splits = checked_splits(*operation, memory.row_count, std::move(splits), set.size());
  return submission;
}

Handle submit(Submission submission) {
  prepare(submission);
  auto& [set, operation] = submission;
  set.lane()->submit(operation);
  return Handle(set.lane(), std::move(operation));
}

void run(const Submission& submission) {
  prepare(submission);
  const auto& [set, operation] = submission;
  set.lane()->run(operation);
  if (operation->error) std::rethrow_exception(operation->error);
  set.lane()->order_after(*operation);
}

Handle submit_invalid(Collective collective, std::string text, const OperationOptions& options) {
  Submission submission = make_operation(collective, options);
  add_invalid_reason(*submission.operation, std::move(text));
  return submit(std::move(submission));
}

}  // namespace kolo::runtime
