#include "bench/cases/whole_path.hpp"

#include <algorithm>
#include <cstring>

#include "bench/cases/public_calls.hpp"
#include "bench/workload/bucket_layout.hpp"
#include "kolo/collectives.hpp"

namespace bench {
namespace {

using namespace kolo;

Handle start_shared(const Calls& calls, const SharedBuffer& buffer, const Layout::Place& place,
                    const std::string& suffix) {
  const OperationOptions options = calls.options(suffix);
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

/// Copies gradients into the buckets and starts each bucket's reduction as soon as it is full.
void run_copied(const Calls& calls, const SharedBuffer& buffer,
                const std::vector<Layout::Place>& buckets, const std::vector<std::string>& suffixes,
                const std::vector<Tensor>& gradients) {
  std::vector<Handle> handles;
  handles.reserve(buckets.size());
  auto gradient = gradients.begin();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const std::byte* const end =
        buffer.data() + buckets[i].input + buckets[i].count * size_of(calls.dtype);
    for (; gradient != gradients.end() && gradient->output < end; ++gradient) {
      std::memcpy(gradient->output, gradient->input, gradient->count * size_of(calls.dtype));
    }
    handles.push_back(start_shared(calls, buffer, buckets[i], suffixes[i]));
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

void WholePath::add(const Workload& workload, bool in_place, GrowingBuffer& memory,
                    std::vector<Case>& cases) {
  for (const std::string& compression : options_.compressions) {
    add_staged(workload, in_place, memory, compression, cases);
    if (options_.is_gradients()) {
      if (in_place) add_buckets(workload, memory, compression, cases);
    } else if (can_be_in_window(workload.operation, in_place)) {
      add_in_window(workload, in_place, compression, cases);
    }
  }
}

void WholePath::add_staged(const Workload& workload, bool in_place, GrowingBuffer& memory,
                           const std::string& compression, std::vector<Case>& cases) {
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
      cases.push_back({label, tensors, [=] { run_group(calls, tensors); }});
    } else {
      cases.push_back({label, tensors, [=, suffixes = suffixes_of(tensors.size())] {
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
                              const std::string& compression, std::vector<Case>& cases) {
  if (!is_wanted(kWholePath, kWindow)) return;
  const Layout layout = plan_layout(workload, in_place, runtime_.rank(), runtime_.size());
  const SharedBuffer& buffer = reserve_shared(layout.size_bytes);
  if (!buffer.is_shared()) return;
  const Calls calls{workload.operation, workload.dtype, runtime_.size(),
                    (in_place ? "kolo.window." : "kolo.window.apart.") + compression, compression};
  cases.push_back({{.algorithm = kWholePath,
                    .placement = kWindow,
                    .in_place = in_place,
                    .compression = compression},
                   layout.at(buffer.data()),
                   [=, places = layout.places, suffixes = suffixes_of(layout.places.size())] {
                     run_shared(calls, buffer, places, suffixes);
                   }});
}

void WholePath::add_buckets(const Workload& workload, GrowingBuffer& memory,
                            const std::string& compression, std::vector<Case>& cases) {
  if (!is_wanted(kBuckets, kWindow) && !is_wanted(kCopiedBuckets, kWindow)) return;
  const BucketLayout layout = plan_buckets(workload);
  const SharedBuffer& buffer = reserve_shared(layout.gradients.size_bytes);
  if (!buffer.is_shared()) return;
  std::vector<Tensor> gradients = layout.gradients.at(buffer.data());
  const auto add = [&](const std::string& algorithm, const auto& run) {
    if (!is_wanted(algorithm, kWindow)) return;
    const Calls calls{workload.operation, workload.dtype, runtime_.size(),
                      algorithm + '.' + compression, compression};
    cases.push_back({{.algorithm = algorithm, .placement = kWindow, .compression = compression},
                     gradients,
                     [=, buckets = layout.buckets.places,
                      suffixes = suffixes_of(layout.buckets.places.size())] {
                       run(calls, buffer, buckets, suffixes);
                     }});
  };
  add(kBuckets, run_shared);
  const Layout apart = plan_layout(workload, /*in_place=*/true, runtime_.rank(), runtime_.size());
  const std::vector<Tensor> sources = apart.at(memory.reserve(apart.size_bytes));
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i].input = sources[i].input;
  add(kCopiedBuckets, [gradients](const Calls& calls, const SharedBuffer& shared,
                                  const std::vector<Layout::Place>& buckets,
                                  const std::vector<std::string>& suffixes) {
    run_copied(calls, shared, buckets, suffixes, gradients);
  });
}

}  // namespace bench
