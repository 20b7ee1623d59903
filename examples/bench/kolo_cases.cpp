#include "bench/kolo_cases.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <numeric>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "bench/machine.hpp"
#include "bench/public_calls.hpp"
#include "bench/rank.hpp"
#include "bench/workload.hpp"
#include "comm/make_world.hpp"
#include "comm/wait.hpp"
#include "kolo/algorithm.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "ops/select.hpp"
#include "runtime/engine/backoff.hpp"

namespace bench {
namespace {

using namespace kolo;

constexpr int kPollsPerClockRead = 32;  // polls before the clock is read

/// Polls with the library's backoff: spins, then yields, then sleeps.
void finish(Task task, std::chrono::nanoseconds spin) {
  runtime::Backoff backoff(spin);
  int looks = 0;
  for (;;) {
    const Progress progress = task.poll();
    if (progress == Progress::Done) return;
    if (progress == Progress::Advanced) {
      backoff.reset();
      looks = 0;
    } else if (++looks % kPollsPerClockRead != 0) {
      continue;
    } else if (const auto pause = backoff.next_pause(); pause.count() > 0) {
      std::this_thread::sleep_for(pause);
    }
  }
}

/// Runs one bare algorithm on several tensors, one after another.
class BareRun {
 public:
  /// `common`: the fields that all calls share.
  BareRun(const Algorithm& algorithm, const CollectiveCall& common, std::chrono::nanoseconds spin);
  BareRun(const BareRun&) = delete;  // calls point into it
  BareRun& operator=(const BareRun&) = delete;

  /// `segments`: every rank's memory as mapped in this process, if it is in a window; else empty.
  void add(const Layout::Place& place, std::byte* memory, const std::vector<std::byte*>& segments);

  void run() const;

 private:
  struct Call {
    CollectiveCall call;
    std::vector<std::size_t> counts;
    std::vector<std::byte*> peer_buffers;
  };

  Algorithm algorithm_;
  CollectiveCall common_;
  std::chrono::nanoseconds spin_;
  std::deque<Call> calls_;
};

BareRun::BareRun(const Algorithm& algorithm, const CollectiveCall& common,
                 std::chrono::nanoseconds spin)
    : algorithm_(algorithm), common_(common), spin_(spin) {}

void BareRun::add(const Layout::Place& place, std::byte* memory,
                  const std::vector<std::byte*>& segments) {
  Call& added = calls_.emplace_back();
  const auto ranks = static_cast<std::size_t>(common_.communicator->size());
  added.counts.assign(ranks, place.count);
  const bool peers_read_inputs = algorithm_.collective == Collective::ReduceScatter ||
                                 algorithm_.collective == Collective::AllToAll;
  for (std::byte* const segment : segments) {
    added.peer_buffers.push_back(segment + (peers_read_inputs ? place.input : place.output));
  }
  added.call = common_;
  added.call.input = memory + place.input;
  added.call.output = memory + place.output;
  added.call.count = place.count;
  added.call.counts = added.counts;
  added.call.send_counts = added.counts;
  added.call.receive_counts = added.counts;
  added.call.peer_buffers = added.peer_buffers;
}

void BareRun::run() const {
  for (const Call& call : calls_) finish(algorithm_.run(call.call), spin_);
}

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

constexpr int kFreeChannel = 2;  // the Runtime's world uses 0 and 1

std::unique_ptr<Communicator> make_communicator(comm::World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.topology().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_communicator(ranks, kFreeChannel);
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool lies_in_window(const Algorithm& algorithm) { return algorithm.needs == Needs::PeerBuffers; }

}  // namespace

KoloCases::KoloCases(const Options& options)
    : options_(options),
      world_(comm::make_world(config_)),
      runtime_({.config = config_, .world = world_}),
      communicator_(make_communicator(*world_)) {
  registry_.prefer(config_.algorithm);
  make_staging();
}

void KoloCases::make_staging() {
  if (!config_.shared_memory) {
    why_no_window_ = "KOLO_SHARED_MEMORY is off";
  } else if (world_->topology().local_size < world_->topology().size) {
    why_no_window_ = "the ranks are on several nodes";
  } else if (runtime_.size() > 1) {
    try {
      comm::wait(world_->make_window(*communicator_, 0, config_.tuning.staging_bytes, staging_),
                 Deadline::after(config_.timeout));
    } catch (const BackendError& error) {  // thrown on all ranks
      why_no_window_ = error.what();
    }
  } else {
    why_no_window_ = "there is one rank only";
  }
}

std::vector<Case> KoloCases::make(const Workload& workload) {
  std::vector<Case> cases;
  memory_.reserve(largest_layout(workload).size_bytes);
  if (contains(options_.placements, kWindow) && !options_.is_gradients()) {
    has_peer_buffers_ = reserve_shared(largest_layout(workload).size_bytes).is_shared();
    if (!has_peer_buffers_ && why_no_window_.empty()) why_no_window_ = "none is left";
  }
  for (const bool in_place : {true, false}) {
    if (!options_.wants(workload.operation, in_place)) continue;
    if (!options_.is_gradients()) add_bare(workload, in_place, cases);
    add_public(workload, in_place, cases);
  }
  if (cases.empty()) {
    throw InvalidArgument("nothing that was asked for can be measured here" +
                          (why_no_window_.empty() ? "" : ": no shared memory, " + why_no_window_));
  }
  return cases;
}

/// All cases share this memory, so it must not be reallocated after the first one is made.
Layout KoloCases::largest_layout(const Workload& workload) const {
  return plan_layout(workload, !options_.out_of_place, runtime_.rank(), runtime_.size());
}

void KoloCases::add_bare(const Workload& workload, bool in_place, std::vector<Case>& cases) {
  for (const Algorithm& algorithm : registry_.algorithms()) {
    if (algorithm.collective != collective_of(workload.operation)) continue;
    const bool fits_place =
        contains(options_.placements, lies_in_window(algorithm) ? kWindow : kStaged);
    if (!fits_place || !is_wanted(algorithm, workload)) continue;
    if (fits(algorithm)) {
      if (lies_in_window(algorithm) && !can_be_in_window(workload.operation, in_place)) continue;
      cases.push_back(make_bare(algorithm, workload, in_place));
    } else if (contains(options_.algorithms, algorithm.name)) {
      throw InvalidArgument(
          "--algorithm " + std::string(algorithm.name) + " cannot run here: " +
          (algorithm.needs == Needs::Nodes ? "its ranks need several nodes" : why_no_window_));
    }
  }
}

Case KoloCases::make_bare(const Algorithm& algorithm, const Workload& workload, bool in_place) {
  const int rank = runtime_.rank();
  const Layout layout = plan_layout(workload, in_place, rank, runtime_.size());
  std::vector<std::byte*> segments;
  std::byte* memory = nullptr;
  if (lies_in_window(algorithm)) {
    // The whole path's buffer: on other pages the same algorithm may be a fifth faster or slower.
    const SharedBuffer& shared = reserve_shared(layout.size_bytes);
    segments = shared.peers(runtime_.world());
    memory = shared.data();
  } else {
    memory = memory_.reserve(layout.size_bytes);
  }
  CollectiveCall common;
  common.communicator = communicator_.get();
  common.window = staging_.get();
  common.dtype = workload.dtype;
  common.segment_bytes = config_.tuning.segment_bytes;
  const auto run = std::make_shared<BareRun>(algorithm, common,
                                             runtime::spin_of(config_, world_->topology(),
                                                              /*is_matched_by_order=*/false));
  for (const Layout::Place& place : layout.places) run->add(place, memory, segments);
  return {{.algorithm = std::string(algorithm.name),
           .placement = lies_in_window(algorithm) ? kWindow : kStaged,
           .in_place = in_place},
          layout.at(memory),
          [run] { run->run(); }};
}

bool KoloCases::fits(const Algorithm& algorithm) const {
  switch (algorithm.needs) {
    case Needs::Messages: return true;
    case Needs::Window: return staging_ != nullptr;
    case Needs::PeerBuffers: return staging_ != nullptr && has_peer_buffers_;
    case Needs::Nodes: return false;  // all ranks are treated as one node
  }
  return false;
}

bool KoloCases::is_wanted(const Algorithm& algorithm, const Workload& workload) const {
  if (algorithm.name == "adasum") return false;  // its results are not sums
  const auto& wanted = options_.algorithms;
  if (contains(wanted, algorithm.name)) return true;
  if (contains(wanted, kAllAlgorithms)) return true;
  return wanted.empty() && algorithm.name == chosen(workload, lies_in_window(algorithm));
}

std::string_view KoloCases::chosen(const Workload& workload, bool has_peer_buffers) const {
  const bool has_window = staging_ != nullptr;
  return ops::select(registry_, {.collective = collective_of(workload.operation),
                                 .bytes = size_bytes(workload, runtime_.size()),
                                 .size = runtime_.size(),
                                 .has_window = has_window,
                                 .has_peer_buffers = has_window && has_peer_buffers})
      .name;
}

bool KoloCases::is_wanted(const std::string& algorithm, const char* placement) const {
  return contains(options_.placements, placement) &&
         (options_.algorithms.empty() || contains(options_.algorithms, algorithm));
}

const SharedBuffer& KoloCases::reserve_shared(std::size_t bytes) {
  if (!shared_ || shared_->size_bytes() < bytes) {
    shared_.reset();
    shared_.emplace(bytes);
  }
  return *shared_;
}

void KoloCases::add_public(const Workload& workload, bool in_place, std::vector<Case>& cases) {
  for (const std::string& compression : options_.compressions) {
    add_staged(workload, in_place, compression, cases);
    if (options_.is_gradients()) {
      if (in_place) add_buckets(workload, compression, cases);
    } else if (can_be_in_window(workload.operation, in_place)) {
      add_in_window(workload, in_place, compression, cases);
    }
  }
}

void KoloCases::add_staged(const Workload& workload, bool in_place, const std::string& compression,
                           std::vector<Case>& cases) {
  const Layout layout = plan_layout(workload, in_place, runtime_.rank(), runtime_.size());
  add_calls(
      {.algorithm = "", .placement = kStaged, .in_place = in_place, .compression = compression},
      {workload.operation, workload.dtype, runtime_.size(),
       (in_place ? ".staged." : ".apart.") + compression, compression},
      layout.at(memory_.reserve(layout.size_bytes)), options_.is_gradients(),
      [this](const std::string& algorithm) { return is_wanted(algorithm, kStaged); }, cases);
}

void KoloCases::add_in_window(const Workload& workload, bool in_place,
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

void KoloCases::add_buckets(const Workload& workload, const std::string& compression,
                            std::vector<Case>& cases) {
  if (!is_wanted(kBuckets, kWindow) && !is_wanted(kCopiedBuckets, kWindow)) return;
  const BucketLayout layout = plan_buckets(workload, false);
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
  const std::vector<Tensor> sources = apart.at(memory_.reserve(apart.size_bytes));
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i].input = sources[i].input;
  add(kCopiedBuckets, [gradients](const Calls& calls, const SharedBuffer& shared,
                                  const std::vector<Layout::Place>& buckets,
                                  const std::vector<std::string>& suffixes) {
    run_copied(calls, shared, buckets, suffixes, gradients);
  });
}

}  // namespace bench
