#include "bench/whole_path.hpp"

#include <algorithm>
#include <numeric>

#include "kolo/collectives.hpp"
#include "kolo/compression.hpp"
#include "torch/bucket_plan.hpp"

namespace bench {
namespace {

using namespace kolo;

constexpr int kRoot = 0;

/// What a contestant's calls need to know besides the tensors.
struct Calls {
  Operation operation;
  DType dtype;
  int ranks;
  std::string name;  ///< of the first; others get a number
  std::string compression;

  TensorView view(std::byte* data, std::size_t count) const {
    return {data, dtype, {static_cast<std::int64_t>(count)}};
  }
  TensorView input(const Tensor& tensor) const {
    return view(tensor.input, input_count(operation, tensor.count, ranks));
  }
  TensorView output(const Tensor& tensor) const {
    return view(tensor.output, output_count(operation, tensor.count, ranks));
  }
  AllreduceOptions reduce_options(const std::string& suffix = "") const {
    return {
        .op = ReduceOp::Sum, .compression = Compression::named(compression), .name = name + suffix};
  }
};

AllocateRows rows_at(std::byte* output) {
  return [output](const std::vector<std::int64_t>&) { return output; };
}

Handle start(const Calls& calls, const Tensor& tensor, const std::string& suffix) {
  const OperationOptions options{.name = calls.name + suffix};
  switch (calls.operation) {
    case Operation::AllReduce:
      return allreduce_async(calls.input(tensor), calls.output(tensor),
                             calls.reduce_options(suffix));
    case Operation::ReduceScatter:
      return reduce_scatter_async(calls.input(tensor), calls.output(tensor),
                                  calls.reduce_options(suffix));
    case Operation::AllGather:
      return allgather_async(calls.input(tensor), rows_at(tensor.output), options);
    case Operation::Broadcast: return broadcast_async(calls.output(tensor), kRoot, options);
    case Operation::AllToAll:
      return alltoall_async(calls.input(tensor), {}, rows_at(tensor.output), options);
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
    case Operation::AllGather:
      return grouped_allgather_async(std::move(rows), {.name = calls.name});
    case Operation::Broadcast: return grouped_broadcast_async(outputs, kRoot, {.name = calls.name});
    default: return grouped_allreduce_async(pairs, calls.reduce_options());
  }
}

bool has_groups(Operation operation) { return operation != Operation::AllToAll; }

/// All tensors at once, each under a name of its own.
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

Handle start_shared(const Calls& calls, const SharedBuffer& buffer, const Layout::Place& place,
                    const std::string& suffix) {
  const OperationOptions options{.name = calls.name + suffix};
  const auto count = static_cast<std::int64_t>(place.count);
  switch (calls.operation) {
    case Operation::AllReduce:
      return allreduce_async(buffer, place.input, place.count, calls.dtype,
                             calls.reduce_options(suffix));
    case Operation::ReduceScatter:
      return reduce_scatter_async(buffer, place.input, {count * calls.ranks},
                                  calls.view(buffer.data() + place.output, place.count),
                                  calls.reduce_options(suffix));
    case Operation::AllGather:
      return allgather_async(
          buffer, place.output,
          std::vector<std::int64_t>(static_cast<std::size_t>(calls.ranks), count), calls.dtype,
          options);
    case Operation::Broadcast:
      return broadcast_async(buffer, place.output, place.count, calls.dtype, kRoot, options);
    case Operation::AllToAll:
      return alltoall_async(buffer, place.input, buffer, place.output, place.count, calls.dtype,
                            options);
  }
  return {};
}

void run_shared(const Calls& calls, const SharedBuffer& buffer,
                const std::vector<Layout::Place>& places,
                const std::vector<std::string>& suffixes) {
  std::vector<Handle> handles;
  handles.reserve(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    handles.push_back(start_shared(calls, buffer, places[i], suffixes[i]));
  }
  for (Handle& handle : handles) handle.wait();
}

}  // namespace

WholePath::WholePath(const Options& options, Runtime& runtime)
    : options_(options), runtime_(runtime) {}

bool WholePath::is_wanted(const std::string& algorithm, const char* placement) const {
  const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  return contains(options_.placements, placement) &&
         (options_.algorithms.empty() || contains(options_.algorithms, algorithm));
}

const SharedBuffer& WholePath::reserve_shared(std::size_t bytes) {
  if (!shared_ || shared_->size_bytes() < bytes) {
    shared_.reset();
    shared_.emplace(bytes);
  }
  return *shared_;
}

void WholePath::add(const Workload& workload, bool in_place, Arena& memory,
                    std::vector<Contestant>& contestants) {
  for (const std::string& compression : options_.compressions) {
    add_staged(workload, in_place, memory, compression, contestants);
    if (options_.is_gradients()) {
      if (in_place) add_buckets(workload, compression, contestants);
    } else if (can_be_in_window(workload.operation, in_place)) {
      add_in_window(workload, in_place, compression, contestants);
    }
  }
}

void WholePath::add_staged(const Workload& workload, bool in_place, Arena& memory,
                           const std::string& compression, std::vector<Contestant>& contestants) {
  const Layout layout = plan_layout(workload, in_place, runtime_.rank(), runtime_.size());
  const std::vector<Tensor> tensors = layout.at(memory.reserve(layout.size_bytes));
  const auto add = [&](const std::string& algorithm, bool as_group) {
    if (!is_wanted(algorithm, kStaged)) return;
    const Label label{.algorithm = algorithm,
                      .placement = kStaged,
                      .in_place = in_place,
                      .compression = compression};
    const Calls calls{workload.operation, workload.dtype, runtime_.size(),
                      algorithm + (in_place ? ".staged." : ".apart.") + compression, compression};
    if (as_group) {
      contestants.push_back({label, tensors, [=] { start_group(calls, tensors).wait(); }});
    } else {
      contestants.push_back({label, tensors, [=, suffixes = suffixes_of(tensors.size())] {
                               run_each(calls, tensors, suffixes);
                             }});
    }
  };
  if (options_.is_gradients()) {
    add(kTensors, false);
    add(kGroup, true);
  } else {
    add(kWholePath, tensors.size() > 1 && has_groups(workload.operation));
  }
}

void WholePath::add_in_window(const Workload& workload, bool in_place,
                              const std::string& compression,
                              std::vector<Contestant>& contestants) {
  if (!is_wanted(kWholePath, kWindow)) return;
  const Layout layout = plan_layout(workload, in_place, runtime_.rank(), runtime_.size());
  const SharedBuffer& buffer = reserve_shared(layout.size_bytes);
  if (!buffer.is_shared()) return;
  const Calls calls{workload.operation, workload.dtype, runtime_.size(),
                    (in_place ? "kolo.window." : "kolo.window.apart.") + compression, compression};
  contestants.push_back({{.algorithm = kWholePath,
                          .placement = kWindow,
                          .in_place = in_place,
                          .compression = compression},
                         layout.at(buffer.data()),
                         [=, places = layout.places, suffixes = suffixes_of(layout.places.size())] {
                           run_shared(calls, buffer, places, suffixes);
                         }});
}

void WholePath::add_buckets(const Workload& workload, const std::string& compression,
                            std::vector<Contestant>& contestants) {
  if (!is_wanted(kBuckets, kWindow)) return;
  std::vector<tensors::PlannedParameter> parameters;
  for (const std::size_t count : workload.counts) parameters.push_back({count, workload.dtype});
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const tensors::BucketPlan plan =
      tensors::plan_buckets(parameters, order, tensors::default_bucket_bytes(parameters));
  const SharedBuffer& buffer = reserve_shared(plan.size_bytes);
  if (!buffer.is_shared()) return;
  std::vector<Layout::Place> places;
  std::vector<Tensor> tensors;
  for (const tensors::Bucket& bucket : plan.buckets) {
    places.push_back({bucket.offset, bucket.offset, bucket.count()});
    for (const tensors::Bucket::Member& member : bucket.members) {
      std::byte* const gradient = buffer.data() + member.offset;
      tensors.push_back({gradient, gradient, workload.counts[member.parameter]});
    }
  }
  const Calls calls{workload.operation, workload.dtype, runtime_.size(),
                    std::string("buckets.") + compression, compression};
  contestants.push_back({{.algorithm = kBuckets, .placement = kWindow, .compression = compression},
                         tensors,
                         [=, suffixes = suffixes_of(places.size())] {
                           run_shared(calls, buffer, places, suffixes);
                         }});
}

}  // namespace bench
