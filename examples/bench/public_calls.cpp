#include "bench/public_calls.hpp"

#include <numeric>
#include <utility>

#include "bench/options.hpp"
#include "kolo/compression.hpp"
#include "train/buckets/bucket_plan.hpp"

namespace bench {
namespace {

using namespace kolo;

constexpr bool has_groups(Operation operation) { return operation != Operation::AllToAll; }

AllocateRows rows_at(std::byte* output) {
  return [output](const std::vector<std::int64_t>&) { return output; };
}

Handle start(const Calls& calls, const Tensor& tensor, const std::string& suffix) {
  switch (calls.operation) {
    case Operation::AllReduce:
      return allreduce_async(calls.input(tensor), calls.output(tensor),
                             calls.reduce_options(suffix));
    case Operation::ReduceScatter:
      return reduce_scatter_async(calls.input(tensor), calls.output(tensor),
                                  calls.reduce_options(suffix));
    case Operation::AllGather:
      return allgather_async(calls.input(tensor), rows_at(tensor.output), calls.options(suffix));
    case Operation::Broadcast:
      return broadcast_async(calls.output(tensor), kRoot, calls.options(suffix));
    case Operation::AllToAll:
      return alltoall_async(calls.input(tensor), {}, rows_at(tensor.output), calls.options(suffix));
  }
  return {};
}

Handle start_group(const Calls& calls, const std::vector<Tensor>& tensors) {
  std::vector<InputOutput> pairs;
  std::vector<InputRows> rows;
  std::vector<TensorView> outputs;
  for (const Tensor& tensor : tensors) {
    pairs.push_back({calls.input(tensor), calls.output(tensor)});
    rows.push_back({calls.input(tensor), rows_at(tensor.output)});
    outputs.push_back(calls.output(tensor));
  }
  switch (calls.operation) {
    case Operation::ReduceScatter:
      return grouped_reduce_scatter_async(pairs, calls.reduce_options());
    case Operation::AllGather: return grouped_allgather_async(std::move(rows), calls.options());
    case Operation::Broadcast: return grouped_broadcast_async(outputs, kRoot, calls.options());
    default: return grouped_allreduce_async(pairs, calls.reduce_options());
  }
}

}  // namespace

TensorView Calls::view(std::byte* data, std::size_t count) const {
  return {data, dtype, {static_cast<std::int64_t>(count)}, device};
}

TensorView Calls::input(const Tensor& tensor) const {
  return view(tensor.input, input_count(operation, tensor.count, ranks));
}

TensorView Calls::output(const Tensor& tensor) const {
  return view(tensor.output, output_count(operation, tensor.count, ranks));
}

OperationOptions Calls::options(const std::string& suffix) const {
  return {.name = name + suffix, .stream = stream};
}

AllreduceOptions Calls::reduce_options(const std::string& suffix) const {
  return {.op = ReduceOp::Sum,
          .compression = Compression::named(compression),
          .name = name + suffix,
          .stream = stream};
}

void run_group(const Calls& calls, const std::vector<Tensor>& tensors) {
  start_group(calls, tensors).wait();
}

void run_each(const Calls& calls, const std::vector<Tensor>& tensors,
              const std::vector<std::string>& suffixes) {
  std::vector<Handle> handles;
  handles.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    handles.push_back(start(calls, tensors[i], suffixes[i]));
  }
  for (Handle& handle : handles) handle.wait();
}

std::vector<std::string> suffixes_of(std::size_t count) {
  std::vector<std::string> suffixes;
  for (std::size_t i = 0; i < count; ++i) suffixes.push_back('.' + std::to_string(i));
  return suffixes;
}

void add_calls(const Label& label, const Calls& calls, const std::vector<Tensor>& tensors,
               bool is_gradients, const std::function<bool(const std::string&)>& is_wanted,
               std::vector<Case>& cases) {
  const auto add = [&](const char* algorithm, bool as_group) {
    if (!is_wanted(algorithm)) return;
    Calls named = calls;
    named.name = algorithm + calls.name;
    Case& added = cases.emplace_back(Case{label, tensors, {}});
    added.label.algorithm = algorithm;
    if (as_group) {
      added.run = [=] { run_group(named, tensors); };
    } else {
      added.run = [=, suffixes = suffixes_of(tensors.size())] {
        run_each(named, tensors, suffixes);
      };
    }
  };
  if (is_gradients) {
    add(kTensors, false);
    add(kGroup, true);
  } else {
    add(kWholePath, tensors.size() > 1 && has_groups(calls.operation));
  }
}

BucketLayout plan_buckets(const Workload& gradients, bool is_on_gpu) {
  using namespace kolo::train;
  std::vector<PlannedParameter> parameters;
  for (const std::size_t count : gradients.counts) parameters.push_back({count, gradients.dtype});
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const BucketPlan plan =
      kolo::train::plan_buckets(parameters, order, default_bucket_bytes(parameters, is_on_gpu));
  BucketLayout layout;
  layout.buckets.size_bytes = plan.size_bytes;
  layout.gradients.size_bytes = plan.size_bytes;
  for (const Bucket& bucket : plan.buckets) {
    layout.buckets.places.push_back({bucket.offset, bucket.offset, bucket.count()});
    for (const Bucket::Member& member : bucket.members) {
      layout.gradients.places.push_back(
          {member.offset, member.offset, gradients.counts[member.parameter]});
    }
  }
  return layout;
}

}  // namespace bench
