#include "bench/cases/kolo_cases.hpp"

#include <algorithm>
#include <numeric>

#include "base/deadline.hpp"
#include "bench/cases/bare_run.hpp"
#include "bench/workload/collective.hpp"
#include "comm/make_world.hpp"
#include "comm/wait.hpp"
#include "kolo/error.hpp"
#include "ops/select.hpp"
#include "runtime/lane/backoff.hpp"

namespace bench {
namespace {

using namespace kolo;

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
      communicator_(make_communicator(*world_)),
      whole_path_(options, runtime_) {
  registry_.prefer(config_.algorithm);
  make_staging();
}

void KoloCases::make_staging() {
  if (!config_.shared_memory) {
    why_no_window_ = "KOLO_SHARED_MEMORY is off";
  } else if (!world_->topology().is_single_node()) {
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
    has_peer_buffers_ = whole_path_.reserve_shared(largest_layout(workload).size_bytes).is_shared();
    if (!has_peer_buffers_ && why_no_window_.empty()) why_no_window_ = "none is left";
  }
  for (const bool in_place : {true, false}) {
    if (!options_.wants(workload.operation, in_place)) continue;
    if (!options_.is_gradients()) add_bare(workload, in_place, cases);
    whole_path_.add(workload, in_place, memory_, cases);
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
    const SharedBuffer& shared = whole_path_.reserve_shared(layout.size_bytes);
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
  const auto run =
      std::make_shared<BareRun>(algorithm, common, runtime::spin_of(config_, world_->topology()));
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

}  // namespace bench
