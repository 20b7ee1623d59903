#include "kolo/runtime.hpp"

#include <atomic>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "comm/make_world.hpp"
#include "comm/wait.hpp"
#include "comm/world.hpp"
#include "kolo/error.hpp"
#include "ops/registry.hpp"
#include "runtime/agree_on_config.hpp"
#include "runtime/last_words.hpp"
#include "runtime/progress_thread.hpp"
#include "runtime/window_board.hpp"

namespace kolo {
namespace {

std::atomic<Runtime*> process_current{nullptr};
thread_local Runtime* thread_current = nullptr;

}  // namespace

/// The composition root: the one place that makes the parts and ties them together.
class Runtime::Parts {
 public:
  Parts(Runtime& runtime, InitOptions options)
      : config_(std::move(options.config)),
        world_(options.world ? std::move(options.world) : comm::make_world(config_)),
        progress_(config_) {
    if (!config_.allreduce.empty()) algorithms_.find(Collective::AllReduce, config_.allreduce);
    set_log_rank(topology().rank);
    set_log_level(parse_log_level(config_.log_level));
    std::vector<int> everybody(static_cast<std::size_t>(topology().size));
    std::iota(everybody.begin(), everybody.end(), 0);
    world_set_ = std::make_unique<ProcessSet>(runtime, make_lane("world", everybody, 0));
    progress_.start();
  }

  ~Parts() { shutdown(); }

  Parts(const Parts&) = delete;  // lanes and threads refer to it
  Parts& operator=(const Parts&) = delete;

  void shutdown() {
    if (std::exchange(is_shut_down_, true)) return;
    const std::shared_ptr<runtime::Lane>& lane = world_set_->lane();
    lane->shut_down();
    progress_.stop();
    lane->stop();
    runtime::dismiss_from_last_words(lane);
  }

  const comm::Topology& topology() const { return world_->topology(); }
  const Config& config() const { return config_; }
  ProcessSet& world_set() { return *world_set_; }

 private:
  std::shared_ptr<runtime::Lane> make_lane(const std::string& name, const std::vector<int>& ranks,
                                           int index) {
    runtime::Lane::Parts parts;
    parts.name = name;
    parts.world_ranks = ranks;
    parts.data = world_->make_communicator(ranks, 2 * index);
    parts.control = world_->make_communicator(ranks, 2 * index + 1);
    const Deadline deadline = Deadline::after(config_.timeout);
    comm::wait(runtime::agree_on_config(*parts.control, config_), deadline, *world_);
    if (config_.shared_memory && topology().is_single_node() && ranks.size() > 1) {
      parts.control_window = make_window(*parts.control, runtime::WindowBoard::segment_bytes());
      parts.staging_window = make_window(*parts.control, config_.staging_bytes);
    }
    auto lane = std::make_shared<runtime::Lane>(
        std::move(parts), runtime::BatchRunner::Choices{algorithms_, compressors_}, config_,
        *world_, progress_.wake_up());
    runtime::enlist_for_last_words(lane);
    progress_.add(lane);
    return lane;
  }

  /// Null, on all ranks alike, where shared memory cannot be had.
  std::shared_ptr<SharedWindow> make_window(Communicator& communicator, std::size_t bytes) {
    std::shared_ptr<SharedWindow> window;
    try {
      comm::wait(world_->make_window(communicator, 0, bytes, window),
                 Deadline::after(config_.timeout), *world_);
    } catch (const BackendError& error) {
      if (communicator.rank() == 0) {
        KOLO_LOG(Warn) << "no shared memory, going by messages: " << error.what();
      }
    }
    return window;
  }

  Config config_;
  std::shared_ptr<comm::World> world_;
  ops::Registry algorithms_;
  compression::Registry compressors_;
  runtime::ProgressThread progress_;
  std::unique_ptr<ProcessSet> world_set_;
  bool is_shut_down_ = false;
};

Runtime::Runtime(InitOptions options) : parts_(std::make_unique<Parts>(*this, std::move(options))) {
  Runtime* none = nullptr;
  process_current.compare_exchange_strong(none, this);
}

Runtime::~Runtime() {
  parts_->shutdown();
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
ProcessSet& Runtime::world() { return parts_->world_set(); }
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

namespace {

std::mutex owned_lock;
std::unique_ptr<Runtime> owned;

}  // namespace

void init() {
  const std::lock_guard lock(owned_lock);
  if (owned == nullptr) owned = std::make_unique<Runtime>();
}

void shutdown() {
  const std::lock_guard lock(owned_lock);
  owned.reset();
}

bool is_initialized() { return Runtime::has_current(); }

}  // namespace kolo
