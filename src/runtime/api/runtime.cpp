#include "kolo/runtime.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/creator_process.hpp"
#include "base/deadline.hpp"
#include "base/intentional_leak.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/text.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "comm/make_world.hpp"
#include "comm/wait.hpp"
#include "comm/world.hpp"
#include "kolo/error.hpp"
#include "ops/registry.hpp"
#include "runtime/api/collectives.hpp"
#include "runtime/control/agree_on_start.hpp"
#include "runtime/lane/lane.hpp"
#include "runtime/lane/lane_factory.hpp"
#include "runtime/protocol/set_name.hpp"

namespace kolo {
namespace {

std::atomic<Runtime*> process_current{nullptr};
thread_local Runtime* thread_current = nullptr;

/// Programs set fields, too.
Config valid(Config config) {
  config.validate();
  return config;
}

}  // namespace

/// The composition root: creates and connects all parts.
class Runtime::Parts {
 public:
  Parts(Runtime& runtime, InitOptions options)
      : runtime_(runtime),
        config_(valid(std::move(options.config))),
        world_(options.world ? std::move(options.world)
                             : comm::make_world(config_, options.communicator)),
        reductions_(std::move(options.reductions)),
        lanes_(*world_, config_, {algorithms_, compressors_, reductions_}) {
    for (const Algorithm& algorithm : options.algorithms) algorithms_.add(algorithm);
    for (const Codec* codec : options.codecs) compressors_.add(*codec);
    algorithms_.prefer(config_.algorithm);
    set_log_rank(topology().rank);
    set_log_level(parse_log_level(config_.log_level));
    if (topology().rank == 0) {
      for (const std::string& text : ignored_settings()) KOLO_LOG(Warn) << text;
    }
    std::vector<int> everybody(static_cast<std::size_t>(topology().size));
    std::iota(everybody.begin(), everybody.end(), 0);
    comm::wait(runtime::agree_on_start(
                   *lanes_.make_control_communicator(0, everybody),
                   {config_, algorithms_, reductions_, options.codecs, options.process_sets}),
               Deadline::after(config_.start_timeout), {*world_, everybody, "Kolo started"});
    add_set(0, everybody);
  }

  ~Parts() { shutdown(); }

  Parts(const Parts&) = delete;  // lanes and threads refer to it
  Parts& operator=(const Parts&) = delete;

  bool is_in_creator_process() const { return creator_.is_current(); }

  void shutdown() {
    if (!is_in_creator_process()) return;
    const std::vector<std::shared_ptr<ProcessSet>> sets = live_sets();
    for (const auto& set : sets) require_outside_step(*set, "shutdown()");
    const auto how = std::uncaught_exceptions() > exceptions_ ? runtime::Leaving::ByException
                                                              : runtime::Leaving::InOrder;
    // The world last: it knows of losses outside a set, which may keep the set from ending.
    for (auto set = sets.rbegin(); set != sets.rend(); ++set) {
      end(**set, "Kolo has been shut down on this rank. Submit before that.", how);
    }
    const Lock lock(close_lock_);
    lanes_.close();
  }

  /// The Runtime is about to be destroyed; the program may keep sets. Takes no lock: no other
  /// thread may use the Runtime any more, and in a forked child one that it does not have may hold
  /// it.
  void detach_sets() KOLO_NO_THREAD_SAFETY_ANALYSIS {
    for (const auto& set : sets_) set->runtime_ = nullptr;
    for (const auto& set : removed_) set->runtime_ = nullptr;
  }

  const comm::Topology& topology() const { return world_->topology(); }
  const Config& config() const { return config_; }

  /// Makes a set that all ranks have agreed on. If that fails on this rank alone, the others learn
  /// of it as of a loss: they count on the set.
  ProcessSet& add_set(int number, const std::vector<int>& ranks) {
    const std::shared_ptr<runtime::Lane> world = world_lane();
    std::shared_ptr<runtime::Lane> lane;
    try {
      if (std::ranges::find(ranks, topology().rank) != ranks.end()) {
        lane = lanes_.make(number, ranks, world);
        runtime::register_for_final_message(lane);
      }
      auto set = std::make_shared<ProcessSet>(runtime_, number, ranks, lane);
      const Lock lock(sets_lock_);
      return *sets_.emplace_back(std::move(set));
    } catch (const InvalidArgument&) {  // thrown on all members
      throw;
    } catch (const PeerLostError&) {  // the others know of that loss too
      throw;
    } catch (...) {
      const std::string how = "process set " + runtime::name_of_set(number, ranks) +
                              " was not made: " + text_of_current_exception();
      if (lane != nullptr) lane->fail(how);
      if (world != nullptr) world->fail(how);
      throw;
    }
  }

  void remove_set(const ProcessSet& set) {
    end(set, "it has been removed", runtime::Leaving::InOrder);
    const Lock lock(sets_lock_);
    const auto found = find(set.number());
    if (found == sets_.end()) return;  // another thread was faster
    removed_.push_back(std::move(*found));
    sets_.erase(found);
    if (removed_.size() <= kRememberedSets) return;
    removed_.front()->runtime_ = nullptr;  // the program may keep it
    removed_.pop_front();
  }

  /// Null if there is none, or it was removed.
  ProcessSet* find_set(int number) {
    const Lock lock(sets_lock_);
    const auto found = find(number);
    return found != sets_.end() ? found->get() : nullptr;
  }

  void require_outside_step(const ProcessSet& set, std::string_view what) const {
    if (set.included()) set.lane()->require_outside_step(what);
  }

 private:
  using Sets = std::vector<std::shared_ptr<ProcessSet>>;

  /// The program may use a set that has just been removed, in a thread that does not know of it yet
  /// or by mistake, which is an error with a text. Sets removed long before are freed.
  static constexpr std::size_t kRememberedSets = 64;

  Sets live_sets() {
    const Lock lock(sets_lock_);
    return sets_;
  }

  /// Null while it is being made.
  std::shared_ptr<runtime::Lane> world_lane() {
    const Lock lock(sets_lock_);
    return sets_.empty() ? nullptr : sets_.front()->lane();
  }

  Sets::iterator find(int number) KOLO_REQUIRES(sets_lock_) {
    return std::ranges::find(sets_, number, [](const auto& set) { return set->number(); });
  }

  static void end(const ProcessSet& set, const char* why, runtime::Leaving how) {
    if (!set.included()) return;
    set.lane()->end(why, how);
    runtime::unregister_from_final_message(set.lane());
  }

  const CreatorProcess creator_;
  Runtime& runtime_;
  Config config_;
  std::shared_ptr<comm::World> world_;
  ops::Registry algorithms_;
  compression::Registry compressors_;
  std::vector<CustomReduction> reductions_;
  runtime::LaneFactory lanes_;
  const int exceptions_ = std::uncaught_exceptions();  // when the Runtime was made
  Mutex sets_lock_;
  Sets sets_ KOLO_GUARDED_BY(sets_lock_);  // the world first
  std::deque<std::shared_ptr<ProcessSet>> removed_ KOLO_GUARDED_BY(sets_lock_);
  Mutex close_lock_;  // one thread at a time closes lanes_
};

Runtime::Runtime(InitOptions options) {
  for (std::vector<int>& ranks : options.process_sets) std::sort(ranks.begin(), ranks.end());
  const std::vector<std::vector<int>> sets = options.process_sets;
  parts_ = std::make_unique<Parts>(*this, std::move(options));
  for (const std::vector<int>& ranks : sets) add_process_set(ranks);
  Runtime* none = nullptr;
  process_current.compare_exchange_strong(none, this);
}

Runtime::~Runtime() {
  bool is_over = parts_->is_in_creator_process();  // threads and MPI are the parent's
  try {
    parts_->shutdown();
  } catch (const InvalidArgument& error) {  // as when a function inside an operation calls exit()
    KOLO_LOG(Error) << error.what();
    is_over = false;
  }
  parts_->detach_sets();
  if (!is_over) leak_intentionally(std::move(parts_));
  Runtime* self = this;
  process_current.compare_exchange_strong(self, nullptr);
  if (thread_current == this) thread_current = nullptr;
}

void Runtime::shutdown() { parts_->shutdown(); }

int Runtime::rank() const { return parts_->topology().rank; }
int Runtime::size() const { return parts_->topology().size; }
int Runtime::local_rank() const { return parts_->topology().local_rank; }
int Runtime::local_size() const { return parts_->topology().local_size; }
int Runtime::cross_rank() const { return parts_->topology().cross_rank; }
int Runtime::cross_size() const { return parts_->topology().cross_size; }
bool Runtime::is_homogeneous() const { return parts_->topology().is_homogeneous(); }
ProcessSet& Runtime::world() { return process_set(0); }

ProcessSet& Runtime::add_process_set(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  const runtime::Submission submission =
      runtime::make_operation(Collective::AddProcessSet, {.process_set = &world()});
  const auto& operation = submission.operation;
  runtime::add_members(*operation, ranks, size());
  runtime::submit(submission).wait();
  return parts_->add_set(operation->process_set_number, ranks);
}

void Runtime::remove_process_set(ProcessSet& set) {
  parts_->require_outside_step(set, "remove_process_set()");
  const runtime::Submission submission =
      runtime::make_operation(Collective::RemoveProcessSet, {.process_set = &world()});
  const auto& operation = submission.operation;
  runtime::add_members(*operation, set.ranks(), size());
  operation->request.set_number = set.number();
  if (set.number() == 0) runtime::add_invalid_reason(*operation, "the world cannot be removed");
  if (parts_->find_set(set.number()) != &set) {
    runtime::add_invalid_reason(*operation,
                                "process set " + set.name() + " has been removed already");
  }
  if (set.included()) {
    // They wait for this rank in the set, and do not come here before it has joined too.
    if (const std::vector<int> joined = set.lane()->joined_ahead(); !joined.empty()) {
      runtime::add_invalid_reason(*operation, "process set " + set.name() + " has been joined by " +
                                                  list_ranks(joined) +
                                                  ". Call join() on its other ranks, too, before "
                                                  "it is removed.");
    }
  }
  runtime::submit(submission).wait();
  parts_->remove_set(set);
}

ProcessSet& Runtime::process_set(int number) {
  if (ProcessSet* const found = parts_->find_set(number)) return *found;
  throw InvalidArgument("there is no process set number " + std::to_string(number));
}

const Config& Runtime::config() const { return parts_->config(); }

Runtime& Runtime::current() {
  Runtime* const current = thread_current != nullptr ? thread_current : process_current.load();
  if (current == nullptr) {
    throw InvalidArgument("Kolo has not been started: make a kolo::Runtime, or call kolo::init().");
  }
  return *current;
}

bool Runtime::has_current() { return thread_current != nullptr || process_current != nullptr; }

void Runtime::set_thread_current(Runtime* runtime) { thread_current = runtime; }

int rank() { return Runtime::current().rank(); }
int size() { return Runtime::current().size(); }
int local_rank() { return Runtime::current().local_rank(); }
int local_size() { return Runtime::current().local_size(); }
int cross_rank() { return Runtime::current().cross_rank(); }
int cross_size() { return Runtime::current().cross_size(); }
bool is_homogeneous() { return Runtime::current().is_homogeneous(); }

ProcessSet& add_process_set(std::vector<int> ranks) {
  return Runtime::current().add_process_set(std::move(ranks));
}
void remove_process_set(ProcessSet& set) { Runtime::current().remove_process_set(set); }

namespace {

Mutex owned_lock;
std::unique_ptr<Runtime> owned KOLO_GUARDED_BY(owned_lock);

void end_with_process() {
  try {
    shutdown();
  } catch (const std::exception& error) {
    KOLO_LOG(Error) << "at the end of the process: " << error.what();
  }
}

}  // namespace

void init() {
  const Lock lock(owned_lock);
  if (owned != nullptr) return;
  comm::at_exit_before_cuda(end_with_process);
  owned = std::make_unique<Runtime>();
}

void shutdown() {
  const Lock lock(owned_lock);
  owned.reset();
}

bool is_initialized() { return Runtime::has_current(); }

}  // namespace kolo
