#include "runtime/api/collectives.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/memory_size.hpp"
#include "base/text.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/messages.hpp"
#include "kolo/shared_buffer.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/data/memory_overlap.hpp"
#include "runtime/engine/engine.hpp"

namespace kolo::runtime {

void add_invalid_reason(Operation& operation, std::string text) {
  if (operation.request.invalid_reason.empty()) operation.request.invalid_reason = std::move(text);
}

namespace {

// Checks of this rank's arguments. Each records its problem in the request, through which all ranks
// learn of it.

void check_size(Operation& operation, const std::vector<std::int64_t>& shape, DType dtype) {
  if (std::ranges::any_of(shape, [](auto extent) { return extent < 0; })) {
    add_invalid_reason(operation, "a dimension of the tensor is negative");
  } else if (!tensor_bytes(shape, size_of(dtype))) {
    add_invalid_reason(operation, "a tensor of shape " + list_of(shape) + " of " +
                                      std::string(name_of(dtype)) + " is longer than any memory, " +
                                      std::to_string(kLongestMemory) + " bytes");
  }
}

/// Of a count that the program gives; too many stay too many.
std::int64_t extent_of(std::size_t count) {
  constexpr std::size_t kMost = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::min(count, kMost));
}

void check_memory(Operation& operation, const TensorView& tensor) {
  check_size(operation, tensor.shape, tensor.dtype);
  if (tensor.data == nullptr && tensor.size_bytes() > 0) {
    add_invalid_reason(operation, "the tensor has elements but no memory");
  }
  // Kernels read whole elements. A rank that fails in the middle of a batch counts as lost.
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (tensor.device.kind == DeviceKind::Cuda && address % size_of(tensor.dtype) != 0) {
    add_invalid_reason(operation, "the tensor does not begin at a multiple of its element's " +
                                      std::to_string(size_of(tensor.dtype)) +
                                      " bytes, as GPUs need. Copy it first.");
  }
}

void check_reduction(Operation& operation, const TensorView& tensor,
                     const AllreduceOptions& options) {
  const DType dtype = tensor.dtype;
  const std::string op(name_of(options.op));
  const bool is_order = options.op == ReduceOp::Min || options.op == ReduceOp::Max;
  const bool is_bits = is_bitwise(options.op);
  if (dtype == DType::Bool && !is_order && !is_bits && options.op != ReduceOp::Custom) {
    add_invalid_reason(operation,
                       "bool supports only Min (and), Max (or), BitXor and Custom, not " + op);
  }
  if (is_bits && dtype != DType::Bool && !is_integer(dtype)) {
    add_invalid_reason(operation, op + " is for integers and bool, not " +
                                      std::string(name_of(dtype)) + ". View it as integers.");
  }
  if (is_complex(dtype) && is_order) {
    add_invalid_reason(operation, op + " of " + std::string(name_of(dtype)) +
                                      " is not defined: complex numbers have no order. Reduce the "
                                      "real and imaginary parts, as of torch::view_as_real.");
  }
  if (options.op == ReduceOp::Adasum && is_integer(dtype)) {
    add_invalid_reason(operation, "Adasum is for floating and complex types, not " +
                                      std::string(name_of(dtype)) + ". Use Sum or Average.");
  }
  const bool is_complex_product = is_complex(dtype) && options.op == ReduceOp::Product;
  const bool is_cpu_only = options.op == ReduceOp::Custom || options.op == ReduceOp::Adasum ||
                           is_bits || is_complex_product;
  if (tensor.device.kind == DeviceKind::Cuda && is_cpu_only) {
    add_invalid_reason(operation, op + " of " + std::string(name_of(dtype)) +
                                      " runs on CPU memory only. Copy the tensor to the CPU.");
  }
  if (!std::isfinite(options.prescale) || !std::isfinite(options.postscale)) {
    add_invalid_reason(operation, "a scale is not a finite number");
  }
  if (options.op == ReduceOp::Custom && (options.prescale != 1.0 || options.postscale != 1.0)) {
    add_invalid_reason(operation, "a Custom reduction takes no scales");
  }
}

void check_output(Operation& operation, const InputOutput& tensor, const ProcessSet& set) {
  const TensorView& input = tensor.input;
  const TensorView& output = tensor.output;
  if (input.device != output.device) {
    add_invalid_reason(operation, "the input and the output are on different devices");
  }
  if (input.dtype != output.dtype) {
    add_invalid_reason(operation, "the dtype of the output is " +
                                      std::string(name_of(output.dtype)) + ", that of the input " +
                                      std::string(name_of(input.dtype)));
  }
  if (output.data == nullptr && output.size_bytes() > 0) {
    add_invalid_reason(operation, "the output has elements but no memory");
  }
  std::vector<std::int64_t> expected = input.shape;
  if (operation.request.collective == Collective::ReduceScatter) {
    if (expected.empty()) {
      add_invalid_reason(operation, "a scalar has no rows to scatter. Give it one dimension, [1].");
      return;
    }
    expected.front() = scattered_rows(expected.front(), set.size(), set.rank());
  }
  if (output.shape != expected) {
    add_invalid_reason(operation, "the output does not have the shape of the result");
  }
}

/// The memory of a tensor whose output is known before the operation runs.
UsedMemory used_memory(const Operation& operation, const InputOutput& tensor,
                       const ProcessSet& set) {
  if (!operation.request.invalid_reason.empty()) return {};  // the shapes may be
  const auto* const input = static_cast<const std::byte*>(tensor.input.data);
  const auto* const output = static_cast<const std::byte*>(tensor.output.data);
  UsedMemory used{.input = {input, tensor.input.size_bytes()},
                  .output = {output, tensor.output.size_bytes()}};
  switch (operation.request.collective) {
    case Collective::ReduceScatter: {
      const auto rows = static_cast<std::size_t>(tensor.input.shape.front());
      const std::size_t row_bytes = rows == 0 ? 0 : used.input.size() / rows;
      used.in_place = input + ops::piece_of(rows, set.size(), set.rank()).begin * row_bytes;
      break;
    }
    case Collective::AllToAll: break;
    default: used.in_place = input;
  }
  return used;
}

void check_overlap(Operation& operation, std::span<const UsedMemory> used) {
  if (!operation.request.invalid_reason.empty()) return;
  std::string problem = overlap_in(operation.request.collective, used);
  if (!problem.empty()) add_invalid_reason(operation, std::move(problem));
}

/// Returns equal splits, or checks those of the caller.
std::vector<std::int64_t> checked_splits(Operation& operation, std::int64_t rows,
                                         std::vector<std::int64_t> splits, int size) {
  const std::size_t ranks = static_cast<std::size_t>(size);
  if (splits.empty()) {
    if (rows % size != 0) {
      add_invalid_reason(operation, std::to_string(rows) + " rows do not divide evenly over " +
                                        std::to_string(size) + " ranks. Give splits.");
    }
    return std::vector<std::int64_t>(ranks, rows / size);
  }
  if (splits.size() != ranks) {
    add_invalid_reason(operation, "there are " + std::to_string(splits.size()) + " splits for " +
                                      std::to_string(size) + " ranks");
  }
  if (std::any_of(splits.begin(), splits.end(), [](std::int64_t split) { return split < 0; })) {
    add_invalid_reason(operation, "a split is negative");
  }
  constexpr std::int64_t kMaxSum = std::numeric_limits<std::int64_t>::max();
  std::int64_t sum = 0;
  bool overflows = false;
  for (const std::int64_t split : splits) {
    overflows |= split > kMaxSum - sum;
    sum = overflows ? kMaxSum : sum + std::max(split, std::int64_t{0});
  }
  if (overflows || sum != rows) {
    add_invalid_reason(operation,
                       "the splits add up to " + std::string(overflows ? "more than " : "") +
                           std::to_string(sum) + " rows, the tensor has " + std::to_string(rows));
  }
  return splits;
}

/// Marks a request that no rank can run as invalid.
void check(const Submission& submission) {
  try {
    submission.set.engine()->check(submission.operation->request);
  } catch (const InvalidArgument& error) {
    add_invalid_reason(*submission.operation, error.what());
  }
}

/// Adds error feedback for the operation's only tensor.
void add_residual(const Submission& submission, float* residual, std::vector<UsedMemory>& used) {
  Operation& operation = *submission.operation;
  if (operation.tensors.size() != 1 || !submission.set.engine()->uses_codec(operation.request)) {
    add_invalid_reason(operation,
                       "a residual is for one floating tensor that a codec compresses. Pass none "
                       "for groups, other types and compression \"" +
                           operation.request.compression + "\".");
    return;
  }
  operation.tensors.front().residual = residual;
  std::size_t count = operation.request.tensors.front().count();
  if (operation.request.compression_scope == CompressionScope::BetweenNodes) {
    count = submission.set.engine()->node_places().own_piece(count).length;
  }
  used.front().residual = std::as_bytes(std::span(residual, count));
}

void prepare(const Submission& submission) {
  try {
    submission.set.engine()->prepare(*submission.operation);
  } catch (const Error& error) {
    add_invalid_reason(*submission.operation, error.what());
  }
}

}  // namespace

ProcessSet& set_or_world(ProcessSet* set) {
  return set != nullptr ? *set : Runtime::current().world();
}

Submission make_operation(Collective collective, const OperationOptions& options) {
  ProcessSet& set = set_or_world(options.process_set);
  auto operation = std::make_shared<Operation>();
  Request& request = operation->request;
  request.collective = collective;
  request.name = options.name.empty() ? set.next_name(name_of(collective)) : options.name;
  const auto timeout = options.timeout.value_or(set.runtime().config().timeout);
  request.purpose = options.purpose;
  const auto now = Operation::Clock::now();
  operation->course.begin = insight::time_of(now);
  operation->deadline = later(now, timeout);
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

std::string problem_with_members(const std::vector<int>& ranks, int world_size) {
  if (ranks.empty()) return "a process set needs at least one rank";
  if (ranks.front() < 0 || ranks.back() >= world_size) {
    const int wrong = ranks.front() < 0 ? ranks.front() : ranks.back();
    return "there is no rank " + std::to_string(wrong) + "; ranks are 0 to " +
           std::to_string(world_size - 1);
  }
  const auto twice = std::ranges::adjacent_find(ranks);
  return twice == ranks.end() ? "" : "rank " + std::to_string(*twice) + " is named twice";
}

void add_members(Operation& operation, const std::vector<int>& ranks, int world_size) {
  if (std::string problem = problem_with_members(ranks, world_size); !problem.empty()) {
    add_invalid_reason(operation, std::move(problem));
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

Submission make_allgather(std::vector<InputRows> tensors, const OperationOptions& options) {
  Submission submission = make_operation(Collective::AllGather, options);
  for (InputRows& tensor : tensors) {
    add_rows(*submission.operation, tensor.input, std::move(tensor.allocate));
  }
  return submission;
}

Submission make_allgather(const std::vector<InputAndGathered>& tensors,
                          std::vector<std::int64_t> rows, Outputs outputs,
                          const OperationOptions& options) {
  Submission submission = make_operation(Collective::AllGather, options);
  Request& request = submission.operation->request;
  for (const InputAndGathered& tensor : tensors) {
    add_tensor(*submission.operation, tensor.input).output = static_cast<std::byte*>(tensor.output);
    std::vector<std::int64_t>& shape = request.tensors.back().shape;
    shape.front() = std::ranges::max(rows);
    check_size(*submission.operation, shape, tensor.input.dtype);
    const bool has_rows = shape.front() > 0;
    shape.erase(shape.begin());
    if (has_rows && tensor.output == nullptr && request.tensors.back().size_bytes() > 0) {
      add_invalid_reason(*submission.operation, "the output has elements but no memory");
    }
  }
  request.rows = std::move(rows);
  if (outputs == Outputs::PerNode) {
    request.placement = Request::kOncePerNode;
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
  const std::vector<std::int64_t> shape{extent_of(size_bytes)};
  check_size(*submission.operation, shape, DType::UInt8);
  submission.operation->request.tensors = {{DType::UInt8, shape}};
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

namespace {

/// For calls that no other rank waits for under their name.
void throw_if_invalid(const Submission& submission) {
  const Request& request = submission.operation->request;
  if (request.invalid_reason.empty()) return;
  throw InvalidArgument(describe(request) + " on process set " + submission.set.name() + ": " +
                        request.invalid_reason);
}

}  // namespace

Handle submit(Submission submission) {
  prepare(submission);
  auto& [set, operation] = submission;
  if (set.engine()->is_matched_by_order()) throw_if_invalid(submission);
  set.engine()->submit(operation);
  return Handle(set.engine(), std::move(operation));
}

void run(const Submission& submission) {
  prepare(submission);
  const auto& [set, operation] = submission;
  if (set.engine()->is_matched_by_order()) throw_if_invalid(submission);
  set.engine()->run(operation);
  set.engine()->finish(*operation, operation->device.stream);
}

Handle submit_invalid(Collective collective, std::string text, const OperationOptions& options) {
  Submission submission = make_operation(collective, options);
  add_invalid_reason(*submission.operation, std::move(text));
  return submit(std::move(submission));
}

}  // namespace kolo::runtime

namespace kolo {

using runtime::add_invalid_reason;
using runtime::make_allgather;
using runtime::make_alltoall;
using runtime::make_broadcast;
using runtime::make_operation;
using runtime::make_reduction;
using runtime::Operation;
using runtime::run;
using runtime::Submission;
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
  const ops::NodePlaces places = runtime::set_or_world(process_set).engine()->node_places();
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

Handle allgather_async(const TensorView& input, void* output, std::vector<std::int64_t> rows,
                       const OperationOptions& options) {
  return grouped_allgather_async({{input, output}}, std::move(rows), options);
}

void allgather(const TensorView& input, AllocateRows allocate, const OperationOptions& options) {
  grouped_allgather({{input, std::move(allocate)}}, options);
}

Handle grouped_allgather_async(std::vector<InputRows> tensors, const OperationOptions& options) {
  return submit(make_allgather(std::move(tensors), options));
}

Handle grouped_allgather_async(const std::vector<InputAndGathered>& tensors,
                               std::vector<std::int64_t> rows, const OperationOptions& options) {
  const ProcessSet& set = member_set(options.process_set);
  const auto rank = static_cast<std::size_t>(set.rank());
  bool are_valid =
      rows.size() == static_cast<std::size_t>(set.size()) && std::ranges::min(rows) >= 0;
  for (const InputAndGathered& tensor : tensors) {
    const auto& shape = tensor.input.shape;
    are_valid = are_valid && !shape.empty() && rows[rank] == shape.front();
  }
  if (!are_valid) {
    return runtime::submit_invalid(Collective::AllGather,
                                   "there must be a number of rows for each of the " +
                                       std::to_string(set.size()) +
                                       " ranks, none negative, for this one that of its tensor",
                                   options);
  }
  const auto own = rows.begin() + set.rank();
  // None is negative, and the sum is of what the ranks have in memory.
  const auto before = static_cast<std::size_t>(std::accumulate(rows.begin(), own, std::int64_t{0}));
  const auto all =
      before + static_cast<std::size_t>(std::accumulate(own, rows.end(), std::int64_t{0}));
  const Submission submission =
      make_allgather(tensors, std::move(rows), runtime::Outputs::PerRank, options);
  Operation& operation = *submission.operation;
  std::vector<runtime::UsedMemory> used;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [input, output] = tensors[i];
    const std::size_t row = operation.request.tensors[i].size_bytes();
    auto* const out = static_cast<std::byte*>(output);
    used.push_back({.input = {static_cast<const std::byte*>(input.data), input.size_bytes()},
                    .output = {out, all * row},
                    .in_place = out + before * row});
  }
  runtime::check_overlap(operation, used);
  return submit(submission);
}

void grouped_allgather(std::vector<InputRows> tensors, const OperationOptions& options) {
  run(make_allgather(std::move(tensors), options));
}

Handle alltoall_async(const TensorView& input, std::vector<std::int64_t> splits,
                      AllocateRows allocate, const OperationOptions& options) {
  return submit(make_alltoall(input, std::move(splits), std::move(allocate), options));
}

void alltoall(const TensorView& input, std::vector<std::int64_t> splits, AllocateRows allocate,
              const OperationOptions& options) {
  run(make_alltoall(input, std::move(splits), std::move(allocate), options));
}

// --- messages ---

namespace {

Submission make_message(Collective collective, const TensorView& tensor, int peer,
                        const MessageOptions& options) {
  Submission submission = make_operation(collective, {.name = options.name,
                                                      .timeout = options.timeout,
                                                      .process_set = options.process_set,
                                                      .keep_alive = options.keep_alive});
  const auto& [set, operation] = submission;
  runtime::add_tensor(*operation, tensor).output = static_cast<std::byte*>(tensor.data);
  const std::vector<int>& ranks = set.ranks();
  const auto found = std::ranges::lower_bound(ranks, peer);
  const bool is_any = peer == kAnyRank && collective == Collective::Receive;
  if (!is_any && (found == ranks.end() || *found != peer)) {
    add_invalid_reason(*operation, "rank " + std::to_string(peer) +
                                       " is not a member of the process set. Ranks of messages are "
                                       "world ranks.");
  }
  if (tensor.device.kind != DeviceKind::Cpu) {
    add_invalid_reason(*operation, "the tensor is on a GPU; messages are for CPU memory. Copy it.");
  }
  runtime::throw_if_invalid(submission);
  operation->message = {.peer = is_any ? -1 : static_cast<int>(found - ranks.begin()),
                        .tag = options.tag};
  return submission;
}

}  // namespace

Handle send_async(const TensorView& tensor, int to, const MessageOptions& options) {
  return submit(make_message(Collective::Send, tensor, to, options));
}

void send(const TensorView& tensor, int to, const MessageOptions& options) {
  run(make_message(Collective::Send, tensor, to, options));
}

Handle receive_async(const TensorView& tensor, int from, const MessageOptions& options,
                     int* sender) {
  const Submission submission = make_message(Collective::Receive, tensor, from, options);
  submission.operation->message.sender = sender;
  return submit(submission);
}

int receive(const TensorView& tensor, int from, const MessageOptions& options) {
  int sender = 0;
  const Submission submission = make_message(Collective::Receive, tensor, from, options);
  submission.operation->message.sender = &sender;
  run(submission);
  return sender;
}

// --- barrier and join ---

Handle barrier_async(const OperationOptions& options) {
  return submit(make_operation(Collective::Barrier, options));
}

void barrier(const OperationOptions& options) { run(make_operation(Collective::Barrier, options)); }

int join(ProcessSet* process_set) {
  ProcessSet& set = runtime::set_or_world(process_set);
  const auto operation = std::make_shared<runtime::Operation>();
  operation->role = runtime::OperationRole::Join;
  set.engine()->join(operation);
  Handle(set.engine(), operation).wait();
  return operation->last_joined;
}

void refuse(Collective collective, const std::string& problem, const OperationOptions& options) {
  runtime::submit_invalid(collective, problem, options).wait();
  throw InvalidArgument(problem);  // not reached: the operation has failed
}

namespace {

/// A range of elements in a shared buffer.
class BufferRange {
 public:
  BufferRange(const SharedBuffer& buffer, std::size_t offset_bytes, DType dtype,
              std::vector<std::int64_t> shape)
      : buffer_(buffer),
        offset_(offset_bytes),
        view_{buffer.data() + offset_bytes, dtype, std::move(shape), buffer.device()} {}

  /// This rank's memory.
  const TensorView& view() const { return view_; }
  std::string place() const { return buffer_.identity() + " + " + std::to_string(offset_); }
  const std::shared_ptr<void>& owner() const { return buffer_.owner(); }

  /// Addresses on all ranks; empty for private memory.
  std::vector<std::byte*> peers(const ProcessSet& set) const {
    std::vector<std::byte*> peers = buffer_.peers(set);
    for (std::byte*& peer : peers) peer += offset_;
    return peers;
  }

  void check_bounds(Operation& operation) const {
    if (!operation.request.invalid_reason.empty()) return;  // the shape may be invalid
    const std::size_t room = buffer_.size_bytes() - std::min(offset_, buffer_.size_bytes());
    if (offset_ > buffer_.size_bytes() || view_.size_bytes() > room) {
      add_invalid_reason(operation, std::to_string(view_.count()) + " elements of " +
                                        std::string(name_of(view_.dtype)) + " from byte " +
                                        std::to_string(offset_) +
                                        " on lie outside the shared buffer of " +
                                        std::to_string(buffer_.size_bytes()) + " bytes");
    } else if (offset_ % size_of(view_.dtype) != 0) {
      add_invalid_reason(operation, "byte " + std::to_string(offset_) +
                                        " of the shared buffer cannot be the first of a " +
                                        std::string(name_of(view_.dtype)));
    }
  }

 private:
  const SharedBuffer& buffer_;
  std::size_t offset_;
  TensorView view_;
};

std::vector<std::int64_t> shape_of(std::size_t count) { return {runtime::extent_of(count)}; }

/// Places the operation's only tensor in shared memory.
Submission in_shared_memory(Submission submission, const BufferRange& range) {
  Operation& operation = *submission.operation;
  range.check_bounds(operation);
  operation.request.fusible = false;  // fusing would copy it
  operation.request.placement = range.place();
  operation.tensors.front().peer_buffers = range.peers(submission.set);
  operation.buffers.push_back(range.owner());
  return submission;
}

Submission make_allreduce(const BufferRange& range, const AllreduceOptions& options) {
  return in_shared_memory(
      runtime::make_reduction(Collective::AllReduce, {{range.view(), range.view()}}, options),
      range);
}

Submission make_reduce_scatter(const BufferRange& range, const TensorView& output,
                               const AllreduceOptions& options) {
  return in_shared_memory(
      runtime::make_reduction(Collective::ReduceScatter, {{range.view(), output}}, options), range);
}

Submission make_allgather(const SharedBuffer& buffer, std::size_t offset_bytes,
                          const std::vector<std::int64_t>& counts, DType dtype,
                          const OperationOptions& options) {
  Submission submission = runtime::make_operation(Collective::AllGather, options);
  const auto& [set, operation] = submission;
  if (counts.size() != static_cast<std::size_t>(set.size())) {
    add_invalid_reason(*operation, "there are " + std::to_string(counts.size()) + " counts for " +
                                       std::to_string(set.size()) + " ranks");
  }
  std::size_t total = 0;
  for (const std::int64_t count : counts) {
    if (count < 0) {
      add_invalid_reason(*operation, "a count is negative");
    } else if (static_cast<std::size_t>(count) > buffer.size_bytes() - total) {
      add_invalid_reason(*operation, "the counts lie outside the shared buffer of " +
                                         std::to_string(buffer.size_bytes()) + " bytes");
    } else {
      total += static_cast<std::size_t>(count);
    }
  }
  const BufferRange range(buffer, offset_bytes, dtype, shape_of(total));
  runtime::TensorMemory& memory = runtime::add_tensor(*operation, range.view());
  memory.output = static_cast<std::byte*>(range.view().data);
  memory.input = nullptr;                            // in place
  operation->request.tensors.front().shape.clear();  // a row is one element
  operation->request.rows = counts;
  return in_shared_memory(std::move(submission), range);
}

Submission make_broadcast(const BufferRange& range, int root, const OperationOptions& options) {
  return in_shared_memory(runtime::make_broadcast({range.view()}, root, options), range);
}

/// `count` elements for each rank, as rows.
std::vector<std::int64_t> rows_of_ranks(const OperationOptions& options, std::size_t count) {
  return {runtime::set_or_world(options.process_set).size(), runtime::extent_of(count)};
}

Submission make_alltoall(const BufferRange& input, const BufferRange& output,
                         const OperationOptions& options) {
  Submission submission = in_shared_memory(
      runtime::make_alltoall(
          input.view(), {}, [data = output.view().data](const auto&) { return data; }, options),
      input);
  Operation& operation = *submission.operation;
  output.check_bounds(operation);
  runtime::check_overlap(operation, std::array{runtime::used_memory(
                                        operation, {input.view(), output.view()}, submission.set)});
  operation.request.placement += " to " + output.place();
  operation.buffers.push_back(output.owner());
  return submission;
}

Submission make_alltoall(const BufferRange& input, std::vector<std::int64_t> splits,
                         AllocateRows allocate, const OperationOptions& options) {
  return in_shared_memory(
      runtime::make_alltoall(input.view(), std::move(splits), std::move(allocate), options), input);
}

}  // namespace

Handle allreduce_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, const AllreduceOptions& options) {
  return submit(make_allreduce({buffer, offset_bytes, dtype, shape_of(count)}, options));
}

void allreduce(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count, DType dtype,
               const AllreduceOptions& options) {
  run(make_allreduce({buffer, offset_bytes, dtype, shape_of(count)}, options));
}

Handle reduce_scatter_async(const SharedBuffer& buffer, std::size_t offset_bytes,
                            const std::vector<std::int64_t>& shape, const TensorView& output,
                            const AllreduceOptions& options) {
  return submit(make_reduce_scatter({buffer, offset_bytes, output.dtype, shape}, output, options));
}

void reduce_scatter(const SharedBuffer& buffer, std::size_t offset_bytes,
                    const std::vector<std::int64_t>& shape, const TensorView& output,
                    const AllreduceOptions& options) {
  run(make_reduce_scatter({buffer, offset_bytes, output.dtype, shape}, output, options));
}

Handle allgather_async(const SharedBuffer& buffer, std::size_t offset_bytes,
                       const std::vector<std::int64_t>& counts, DType dtype,
                       const OperationOptions& options) {
  return submit(make_allgather(buffer, offset_bytes, counts, dtype, options));
}

void allgather(const SharedBuffer& buffer, std::size_t offset_bytes,
               const std::vector<std::int64_t>& counts, DType dtype,
               const OperationOptions& options) {
  run(make_allgather(buffer, offset_bytes, counts, dtype, options));
}

Handle broadcast_async(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count,
                       DType dtype, int root, const OperationOptions& options) {
  return submit(make_broadcast({buffer, offset_bytes, dtype, shape_of(count)}, root, options));
}

void broadcast(const SharedBuffer& buffer, std::size_t offset_bytes, std::size_t count, DType dtype,
               int root, const OperationOptions& options) {
  run(make_broadcast({buffer, offset_bytes, dtype, shape_of(count)}, root, options));
}

Handle alltoall_async(const SharedBuffer& input, std::size_t input_offset_bytes,
                      const SharedBuffer& output, std::size_t output_offset_bytes,
                      std::size_t count, DType dtype, const OperationOptions& options) {
  const BufferRange from(input, input_offset_bytes, dtype, rows_of_ranks(options, count));
  const BufferRange to(output, output_offset_bytes, dtype, rows_of_ranks(options, count));
  return submit(make_alltoall(from, to, options));
}

void alltoall(const SharedBuffer& input, std::size_t input_offset_bytes, const SharedBuffer& output,
              std::size_t output_offset_bytes, std::size_t count, DType dtype,
              const OperationOptions& options) {
  const BufferRange from(input, input_offset_bytes, dtype, rows_of_ranks(options, count));
  const BufferRange to(output, output_offset_bytes, dtype, rows_of_ranks(options, count));
  run(make_alltoall(from, to, options));
}

Handle alltoall_async(const SharedBuffer& input, std::size_t offset_bytes,
                      const std::vector<std::int64_t>& shape, DType dtype,
                      std::vector<std::int64_t> splits, AllocateRows allocate,
                      const OperationOptions& options) {
  return submit(make_alltoall({input, offset_bytes, dtype, shape}, std::move(splits),
                              std::move(allocate), options));
}

void alltoall(const SharedBuffer& input, std::size_t offset_bytes,
              const std::vector<std::int64_t>& shape, DType dtype, std::vector<std::int64_t> splits,
              AllocateRows allocate, const OperationOptions& options) {
  run(make_alltoall({input, offset_bytes, dtype, shape}, std::move(splits), std::move(allocate),
                    options));
}

}  // namespace kolo
