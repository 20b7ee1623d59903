#include "kolo/runtime.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/creator_process.hpp"
#include "base/deadline.hpp"
#include "base/intentional_leak.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/text.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "comm/launcher.hpp"
#include "comm/make_world.hpp"
#include "comm/wait.hpp"
#include "comm/world.hpp"
#include "insight/insight.hpp"
#include "kolo/error.hpp"
#include "ops/registry.hpp"
#include "runtime/api/collectives.hpp"
#include "runtime/control/agree_on_start.hpp"
#include "runtime/control/common_clock.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/engine_factory.hpp"
#include "runtime/engine/final_message.hpp"
#include "runtime/protocol/set_name.hpp"

namespace kolo {
namespace {

std::atomic<Runtime*> process_current{nullptr};
thread_local Runtime* thread_current = nullptr;

/// Programs set fields, too.
Config validate(Config config) {
  config.validate();
  return config;
}

/// The number that a text begins with; 0 if it begins with none.
int leading_number(std::string_view text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::shared_ptr<comm::World> make_world(const Config& config, const InitOptions& options) {
  std::optional<comm::Rendezvous> rendezvous;
  if (options.store != nullptr) rendezvous = {options.store, options.rank, options.size};
  return comm::make_world(config, options.communicator, rendezvous);
}

}  // namespace

/// The composition root: creates and connects all parts.
class Runtime::Parts {
 public:
  Parts(Runtime& runtime, InitOptions options)
      : runtime_(runtime),
        config_(validate(std::move(options.config))),
        world_(options.world ? options.world : make_world(config_, options)),
        reductions_(std::move(options.reductions)),
        engines_(*world_, config_, {algorithms_, compressors_, reductions_}) {
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
                   *engines_.make_control_communicator(0, everybody),
                   {config_, algorithms_, reductions_, options.codecs, options.process_sets}),
               Deadline::after(config_.start_timeout), {*world_, everybody, "Kolo started"});
    make_insight(everybody);
    add_set(0, everybody, Matching::ByName);
  }

  ~Parts() { shutdown(); }

  Parts(const Parts&) = delete;  // engines and threads refer to it
  Parts& operator=(const Parts&) = delete;

  bool is_in_creator_process() const { return creator_.is_current(); }

  void fail(const std::string& how) {
    if (!is_in_creator_process()) return;
    for (const auto& set : live_sets()) {
      if (set->included()) set->engine()->fail(how);
    }
    has_failed_ = true;
  }

  void shutdown() {
    if (!is_in_creator_process()) return;
    insight::Insight::require_outside_metrics_function("shutdown()");
    // mpirun ends the others soon after this process has ended.
    if (has_failed_.exchange(false)) std::this_thread::sleep_for(runtime::kTimeToPrint);
    const std::vector<std::shared_ptr<ProcessSet>> sets = live_sets();
    for (const auto& set : sets) require_outside_step(*set, "shutdown()");
    const auto how = std::uncaught_exceptions() > exceptions_ ? runtime::Leaving::ByException
                                                              : runtime::Leaving::InOrder;
    // The world last: it knows of losses outside a set, which may keep the set from ending.
    for (auto set = sets.rbegin(); set != sets.rend(); ++set) {
      end(**set, "Kolo has been shut down on this rank. Submit before that.", how);
    }
    const Lock lock(stop_lock_);
    insight_->stop();  // sets that the program keeps do not prolong it
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
  insight::Insight& insight() { return *insight_; }

  /// Makes a set on whose number its members, at least, have agreed. If all ranks have, and making
  /// it fails on this rank alone, the others learn of it as of a loss: they count on the set.
  ProcessSet& add_set(int number, const std::vector<int>& ranks, Matching matching) {
    const std::shared_ptr<runtime::Engine> world = world_engine();
    std::shared_ptr<runtime::Engine> engine;
    try {
      if (std::ranges::find(ranks, topology().rank) != ranks.end()) {
        engine = engines_.make(number, ranks, matching, world, insight_);
        runtime::register_for_final_message(engine);
      }
      auto set = std::make_shared<ProcessSet>(runtime_, number, ranks, matching, engine);
      const Lock lock(sets_lock_);
      return *sets_.emplace_back(std::move(set));
    } catch (const InvalidArgument&) {  // thrown on all members
      throw;
    } catch (const PeerLostError&) {  // the others know of that loss too
      throw;
    } catch (...) {
      const std::string how = "failed: process set " + runtime::name_of_set(number, ranks) +
                              " was not made: " + text_of_current_exception();
      if (engine != nullptr) engine->fail(how);
      if (world != nullptr && number > 0) world->fail(how);
      throw;
    }
  }

  /// Ranks that make a set of which nobody else knows.
  struct Members {
    std::vector<int> ranks;  ///< sorted
    Store& store;
    Deadline deadline;
  };

  ProcessSet& add_own_set(const Members& members, Matching matching) {
    const Lock lock(own_sets_lock_);
    last_own_number_ = agree_on_number(members, matching);
    return add_set(-last_own_number_, members.ranks, matching);
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
    if (set.included()) set.engine()->require_outside_step(what);
  }

 private:
  /// The largest next number of all members: no other set of any of them has it.
  int agree_on_number(const Members& members, Matching matching) KOLO_REQUIRES(own_sets_lock_) {
    const auto& [ranks, store, deadline] = members;
    // The store keeps the keys of sets that were removed, and of earlier Runtimes.
    const std::string name = runtime::list_of_ranks(ranks);
    const std::string prefix = "kolo/" + std::to_string(job_) + "/" + name + "/" +
                               std::to_string(++own_sets_of_[ranks]) + "/";
    const std::string what =
        name + (matching == Matching::ByOrder ? " matched by order" : " matched by name");
    const auto answer_key = prefix + "number";
    const int own = topology().rank;
    if (own != ranks.front()) {
      store.set(prefix + std::to_string(own), std::to_string(last_own_number_ + 1) + " " + what);
      return number_in(get(members, answer_key, ranks.front()));
    }
    int number = last_own_number_ + 1;
    std::string problem;
    for (const int rank : ranks) {
      if (rank == own) continue;
      const std::string text = get(members, prefix + std::to_string(rank), rank);
      const std::size_t space = text.find(' ');
      number = std::max(number, leading_number(text));
      if (space == std::string::npos || text.substr(space + 1) != what) {
        problem = "rank " + std::to_string(own) + " makes " + what + ", rank " +
                  std::to_string(rank) + " " + text.substr(std::min(space, text.size() - 1) + 1);
      }
    }
    store.set(answer_key, problem.empty() ? std::to_string(number) : problem);
    return number_in(problem.empty() ? std::to_string(number) : problem);
  }

  /// Throws MismatchError if the text is a problem.
  static int number_in(const std::string& answer) {
    const int number = leading_number(answer);
    if (number > 0) return number;
    throw MismatchError("add_process_set through a Store: " + answer +
                        ". Call it with the same arguments on all members.");
  }

  /// The value that `rank` sets. Throws PeerLostError if a member is lost, ShutdownError if one has
  /// shut down, TimeoutError.
  std::string get(const Members& members, const std::string& key, int rank) {
    const auto& [ranks, store, deadline] = members;
    constexpr std::chrono::milliseconds kSlice{100};
    const std::string what =
        "add_process_set " + runtime::list_of_ranks(ranks) + " through a Store: ";
    bool was_end_seen = false;
    for (;;) {
      if (std::optional<std::string> value = store.get(key, kSlice)) return *value;
      // What a member set before it ended is taken: look once more.
      const std::exception_ptr end = end_of_a_member(ranks, what);
      if (std::exchange(was_end_seen, end != nullptr) && end) std::rethrow_exception(end);
      if (deadline.has_passed()) {
        throw TimeoutError(
            what + "rank " + std::to_string(rank) + " did not set \"" + key +
            "\" in time. Call it on all members, with the same ranks and one store, or raise the "
            "timeout (KOLO_TIMEOUT, or the argument).");
      }
    }
  }

  /// Null if all members may still come.
  std::exception_ptr end_of_a_member(const std::vector<int>& ranks, const std::string& what) {
    const std::shared_ptr<runtime::Engine> world = world_engine();
    const auto is_member = [&](int rank) { return std::ranges::find(ranks, rank) != ranks.end(); };
    if (const auto lost = world->lost_rank(); lost && is_member(lost->rank)) {
      return to_exception(
          {lost->kind, what + "rank " + std::to_string(lost->rank) + " " + lost->how});
    }
    for (const int rank : ranks) {
      if (!world->has_ended(rank)) continue;
      return to_exception(
          {ErrorKind::Shutdown, what + "rank " + std::to_string(rank) +
                                    " shut Kolo down before all members had called it"});
    }
    const std::vector<int> dead = world_->dead_peers();
    if (const auto found = std::ranges::find_if(dead, is_member); found != dead.end()) {
      return to_exception({ErrorKind::PeerLost,
                           what + "rank " + std::to_string(*found) + " has ended its process"});
    }
    return nullptr;
  }

  using Sets = std::vector<std::shared_ptr<ProcessSet>>;

  /// The program may use a set that has just been removed, in a thread that does not know of it yet
  /// or by mistake, which is an error with a text. Sets removed long before are freed.
  static constexpr std::size_t kRememberedSets = 64;

  Sets live_sets() {
    const Lock lock(sets_lock_);
    return sets_;
  }

  /// Null while it is being made.
  std::shared_ptr<runtime::Engine> world_engine() {
    const Lock lock(sets_lock_);
    return sets_.empty() ? nullptr : sets_.front()->engine();
  }

  Sets::iterator find(int number) KOLO_REQUIRES(sets_lock_) {
    return std::ranges::find(sets_, number, [](const auto& set) { return set->number(); });
  }

  void make_insight(const std::vector<int>& everybody) {
    runtime::CommonClock clock;
    comm::wait(runtime::agree_on_clock(*engines_.make_control_communicator(0, everybody),
                                       topology().node_of_rank, clock),
               Deadline::after(config_.start_timeout), {*world_, everybody, "Kolo started"});
    job_ = clock.job;
    std::string records = config_.record;
    if (records == "auto" && topology().size > 1) {  // a rank alone waits for nobody
      std::error_code none;
      records = std::filesystem::temp_directory_path(none);
      records = none ? "" : records + "/kolo-record-" + std::to_string(clock.job);
    } else if (records == "auto" || records == "off") {
      records.clear();
    }
    const auto rank = static_cast<std::size_t>(topology().rank);
    const std::vector<std::string>& hosts = topology().host_of_rank;
    insight_ =
        std::make_shared<insight::Insight>(insight::Origin{.rank = topology().rank,
                                                           .size = topology().size,
                                                           .host = hosts.empty() ? "" : hosts[rank],
                                                           .node_of_rank = topology().node_of_rank,
                                                           .shares_cores = topology().shares_cores,
                                                           .job = clock.job,
                                                           .to_world_clock = clock.to_world_clock},
                                           std::move(records));
    if (!config_.timeline.empty()) {
      try {
        insight_->start_timeline(config_.timeline);
      } catch (const BackendError& error) {  // on this rank alone: the others would wait for it
        KOLO_LOG(Warn) << "KOLO_TIMELINE: " << error.what();
      }
    }
    if (!config_.metrics.empty()) {
      insight_->start_to_export(config_.metrics, topology().local_rank,
                                insight::labels_of(clock.job, config_.metrics_labels));
    }
  }

  static void end(const ProcessSet& set, const char* why, runtime::Leaving how) {
    if (!set.included()) return;
    set.engine()->end(why, how);
    runtime::unregister_from_final_message(set.engine());
  }

  const CreatorProcess creator_;
  Runtime& runtime_;
  Config config_;
  std::shared_ptr<comm::World> world_;
  ops::Registry algorithms_;
  compression::Registry compressors_;
  std::vector<CustomReduction> reductions_;
  runtime::EngineFactory engines_;
  std::uint64_t job_ = 0;                              // no other job, or Runtime, has this number
  std::shared_ptr<insight::Insight> insight_;          // made at the end of the start
  const int exceptions_ = std::uncaught_exceptions();  // when the Runtime was made
  std::atomic<bool> has_failed_{false};
  Mutex sets_lock_;
  Sets sets_ KOLO_GUARDED_BY(sets_lock_);  // the world first
  std::deque<std::shared_ptr<ProcessSet>> removed_ KOLO_GUARDED_BY(sets_lock_);
  Mutex own_sets_lock_;  // one such set is made at a time
  int last_own_number_ KOLO_GUARDED_BY(own_sets_lock_) = 0;
  std::map<std::vector<int>, int> own_sets_of_ KOLO_GUARDED_BY(own_sets_lock_);  // made so far
  Mutex stop_lock_;  // one thread at a time stops insight_
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

void Runtime::fail(const std::string& how) { parts_->fail(how); }
void Runtime::shutdown() { parts_->shutdown(); }

int Runtime::rank() const { return parts_->topology().rank; }
int Runtime::size() const { return parts_->topology().size; }
int Runtime::local_rank() const { return parts_->topology().local_rank; }
int Runtime::local_size() const { return parts_->topology().local_size; }
int Runtime::cross_rank() const { return parts_->topology().cross_rank; }
int Runtime::cross_size() const { return parts_->topology().cross_size; }
bool Runtime::is_homogeneous() const { return parts_->topology().is_homogeneous(); }
ProcessSet& Runtime::world() { return process_set(0); }

ProcessSet& Runtime::add_process_set(std::vector<int> ranks, Matching matching) {
  std::sort(ranks.begin(), ranks.end());
  const runtime::Submission submission = runtime::make_operation(
      Collective::AddProcessSet,
      {.process_set = &world(),
       .purpose = matching == Matching::ByOrder ? "a set matched by order" : ""});
  const auto& operation = submission.operation;
  runtime::add_members(*operation, ranks, size());
  runtime::submit(submission).wait();
  return parts_->add_set(operation->process_set_number, ranks, matching);
}

ProcessSet& Runtime::add_process_set(std::vector<int> ranks, Store& store, Matching matching,
                                     std::optional<std::chrono::nanoseconds> timeout) {
  std::sort(ranks.begin(), ranks.end());
  if (const std::string problem = runtime::problem_with_members(ranks, size()); !problem.empty()) {
    throw InvalidArgument("add_process_set through a Store: " + problem);
  }
  if (!std::ranges::binary_search(ranks, rank())) {
    throw InvalidArgument("add_process_set through a Store: rank " + std::to_string(rank()) +
                          " is not among " + runtime::list_of_ranks(ranks) +
                          ". Call it on members only.");
  }
  const auto deadline = Deadline::after(timeout.value_or(config().timeout));
  return parts_->add_own_set({std::move(ranks), store, deadline}, matching);
}

void Runtime::remove_process_set(ProcessSet& set) {
  parts_->require_outside_step(set, "remove_process_set()");
  if (set.number() < 0) {  // the other ranks do not know it
    if (parts_->find_set(set.number()) != &set || set.is_being_removed_.exchange(true)) {
      throw InvalidArgument("remove_process_set: process set " + set.name() +
                            " has been removed already");
    }
    try {
      if (!set.engine()->is_lost()) {
        runtime::run(runtime::make_operation(Collective::RemoveProcessSet, {.process_set = &set}));
      }
    } catch (...) {
      set.is_being_removed_ = false;
      throw;
    }
    parts_->remove_set(set);
    return;
  }
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
    if (const std::vector<int> joined = set.engine()->joined_ahead(); !joined.empty()) {
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

insight::Insight& Runtime::insight() const { return parts_->insight(); }

Runtime& Runtime::current() {
  Runtime* const current = thread_current != nullptr ? thread_current : process_current.load();
  if (current == nullptr) {
    throw InvalidArgument(
        "Kolo has not been started: call init(), or in C++ make a kolo::Runtime." +
        std::string(comm::has_another_copy_started()
                        ? " Another copy of the library has been started in this process, as "
                          "happens if a program and its plug-in are both linked with "
                          "libkolo_core.a: build Kolo with BUILD_SHARED_LIBS=ON."
                        : ""));
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

ProcessSet& add_process_set(std::vector<int> ranks, Matching matching) {
  return Runtime::current().add_process_set(std::move(ranks), matching);
}
ProcessSet& add_process_set(std::vector<int> ranks, Store& store, Matching matching,
                            std::optional<std::chrono::nanoseconds> timeout) {
  return Runtime::current().add_process_set(std::move(ranks), store, matching, timeout);
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

void init(InitOptions options) {
  const Lock lock(owned_lock);
  if (owned != nullptr) return;
  comm::at_exit_before_cuda(end_with_process);
  owned = std::make_unique<Runtime>(std::move(options));
}

void shutdown() {
  insight::Insight::require_outside_metrics_function("shutdown()");
  const Lock lock(owned_lock);
  owned.reset();
}

bool is_initialized() { return Runtime::has_current(); }

}  // namespace kolo
