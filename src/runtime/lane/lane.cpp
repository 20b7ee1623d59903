#include "runtime/lane/lane.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/current_exception.hpp"
#include "base/log.hpp"
#include "kolo/error.hpp"
#include "runtime/control/window_board.hpp"
#include "runtime/lane/backoff.hpp"
#include "runtime/protocol/agreed_failure.hpp"

namespace kolo::runtime {
namespace {

constexpr int kControlTag = Communicator::kTagCount - 1;

// The waits between chunks are short: a caller, who has nothing else to do, looks several times
// before it goes round again. Where ranks share cores, the core is needed by whoever is waited for.
constexpr int kCallersLooks = 128;
constexpr int kLooksOnSharedCores = 4;

Coordinator::Options coordinator_options(const std::string& name, const std::vector<int>& ranks,
                                         int rank, const Config& config) {
  Coordinator::Options options;
  options.rank = rank;
  options.set = {name, ranks};
  options.tree_width = config.tree_width;
  options.patience = config.patience;
  options.stall_warn = config.stall_warn;
  options.lost_after = config.lost_after;
  options.table.capacity = static_cast<std::size_t>(config.table_capacity);
  options.fusion_bytes = config.fusion ? config.fusion_bytes : 0;
  return options;
}

Task wait_for(BatchQueue::Place place) { co_await place; }

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace

Lane::Lane(Parts parts, comm::World& world)
    : name_(parts.data.name),
      config_(parts.data.config),
      spin_(spin_of(config_, world.topology())),
      world_(world),
      data_(std::move(parts.data)),
      control_(std::move(parts.control)),
      mailbox_(*control_, kControlTag),
      coordinator_(coordinator_options(name_, data_.world_ranks, rank(), config_)),
      runner_(std::make_shared<BatchRunner>(world, data_)),
      lost_batches_(data_, world),
      queue_(name_) {
  if (parts.control_window != nullptr) {
    board_ = std::make_unique<WindowBoard>(std::move(parts.control_window));
  } else {
    auto board = std::make_unique<TreeBoard>(
        rank(), size(), Tree(rank(), size(), config_.tree_width),
        [this](int to, const BoardMessage& message) { return mailbox_.send(to, message); });
    tree_board_ = board.get();
    board_ = std::move(board);
  }
  watch_.emplace(data_, world_, *board_);
  if (parts.device) {
    const bool is_added = parts.device->is_added;
    launch_order_ = &parts.device->launch_order;
    device_data_.emplace(std::move(parts.device->data));
    device_runner_ = std::make_shared<DeviceRunner>(parts.device->gpus, *device_data_,
                                                    *launch_order_, world.topology().local_rank);
    overlaps_ = is_added && size() > 1;
    if (is_added) launch_order_->expect_questions();
  }
}

Lane::~Lane() = default;

// --- any thread ---

void Lane::prepare(Operation& operation) {
  if (operation.request.device != DeviceKind::Cuda) return;
  if (device_runner_ == nullptr) {
    throw InvalidArgument(
        "the tensor lies on a CUDA device, but this build of Kolo is for CPUs alone. Configure it "
        "with KOLO_WITH_CUDA=ON where CUDA Toolkit 12.4 or newer and NCCL are installed, or copy "
        "the tensor to the CPU");
  }
  device_runner_->prepare(operation);
}

void Lane::order_after(const Operation& operation) {
  if (operation.device.done != nullptr) device_runner_->order_after(operation);
}

/// In front of all that acts on behalf of this rank.
void Lane::require_home() const {
  if (home_.is_here()) return;
  throw InvalidArgument("process set " + name_ +
                        ": this process is a forked child of the one that started Kolo, and has "
                        "no part in it. Use Kolo in the parent, or start it after fork().");
}

void Lane::submit(std::shared_ptr<Operation> operation) {
  require_home();
  queue_.submit(std::move(operation));
  wake_up_.call();
}

void Lane::run(const std::shared_ptr<Operation>& operation) {
  require_home();
  queue_.submit(operation);
  wait(*operation, Clock::time_point::max());
}

void Lane::join(std::shared_ptr<Operation> operation) {
  require_home();
  queue_.join(std::move(operation));
  wake_up_.call();
}

/// A thread that drives until its own operation has ended; the progress thread leaves it to it.
class Lane::Caller {
 public:
  explicit Caller(Lane& lane) : lane_(lane) { ++lane_.callers_; }
  Caller(const Caller&) = delete;  // it is counted once
  Caller& operator=(const Caller&) = delete;
  ~Caller() {
    --lane_.callers_;
    if (lane_.queue_.in_flight() > 0) lane_.wake_up_.call();
  }

 private:
  Lane& lane_;
};

bool Lane::wait(const Operation& operation, Clock::time_point until) {
  if (operation.is_done.load(std::memory_order_acquire)) return true;
  require_home();
  queue_.await(operation.use);
  const Caller caller(*this);
  const auto is_done = [&] { return operation.is_done.load(std::memory_order_acquire); };
  const bool is_bounded = until != Clock::time_point::max();
  const int looks = spin_.count() > 0 ? kCallersLooks : kLooksOnSharedCores;
  Backoff backoff(spin_);
  while (!is_done() && !(is_bounded && Clock::now() >= until)) {
    if (try_turn(looks)) {
      backoff.reset();
    } else if (const auto pause = backoff.next_pause(); pause.count() > 0) {
      // Somebody else may drive, who says when it has ended.
      std::unique_lock lock(ends_);
      ended_.wait_for(lock, pause, is_done);
    }
  }
  return is_done();
}

bool Lane::try_turn() { return callers_ == 0 && try_turn(1); }

bool Lane::try_turn(int looks) {
  const std::unique_lock turn_lock(turn_, std::try_to_lock);
  return turn_lock.owns_lock() && turn(looks);
}

void Lane::shut_down() {
  queue_.leave();
  Backoff backoff(Backoff::Duration{0});
  auto give_up_at = Clock::time_point::max();
  for (;;) {
    std::unique_lock turn_lock(turn_);
    const bool progressed = turn(1);
    if ((loss_ && lost_batches_.empty()) || has_taken_leave_) break;
    if (has_left_ && give_up_at == Clock::time_point::max()) {
      give_up_at = Clock::now() + config_.lost_after;  // nobody watches for losses any more
    } else if (Clock::now() > give_up_at) {
      world_.mark_broken();
      break;
    }
    turn_lock.unlock();
    if (progressed) {
      backoff.reset();
    } else {
      std::this_thread::sleep_for(backoff.next_pause());
    }
  }
}

void Lane::stop(std::string why) {
  const std::unique_lock turn_lock(turn_);
  queue_.stop(std::move(why));
  turn(1);  // ends what came in since the set was closed
  // A thread that waits for one of these may be on its way to another turn.
  is_stopped_ = true;
}

Lane::Metrics Lane::metrics() {
  const std::lock_guard turn_lock(turn_);
  Metrics metrics;
  metrics.protocol = coordinator_.counters();
  metrics.header_bytes = board_->bytes_shown();
  metrics.bytes_sent = runner_->bytes_sent();
  metrics.bytes_packed = runner_->bytes_packed();
  if (device_runner_ != nullptr) {
    metrics.bytes_sent += device_runner_->bytes_sent();
    metrics.bytes_packed += device_runner_->bytes_packed();
    metrics.gpu_seconds = device_runner_->seconds();
  }
  return metrics;
}

// --- the turn ---

/// The thread in a turn, as long as it is.
class Lane::Driver {
 public:
  explicit Driver(Lane& lane) : driver_(lane.driver_) { driver_ = std::this_thread::get_id(); }
  Driver(const Driver&) = delete;  // there is one at a time
  Driver& operator=(const Driver&) = delete;
  ~Driver() { driver_ = std::thread::id(); }

 private:
  std::atomic<std::thread::id>& driver_;
};

bool Lane::turn(int looks) {
  if (is_stopped_) return false;
  const Driver driver(*this);
  try {
    return progress(Clock::now(), looks);
  } catch (...) {  // programs have functions of their own run in batches, which may throw anything
    // The others may be in the middle of a batch and wait for this rank's part of it.
    declare_lost({rank(), "failed: " + text_of_current_exception()});
    return true;
  }
}

bool Lane::progress(Clock::time_point now, int looks) {
  bool progressed = take_submissions(now);
  if (loss_) {  // nothing moves any more: what still comes in ends at once
    carry_out(coordinator_.decide(to_time(now)));
    return end_lost_batches(now) || progressed;
  }
  board_->beat();
  progressed |= read_mail();
  if (!has_left_) {
    if (const auto loss = watch_->look(now, needs_peers_)) declare_lost(*loss);
  }
  progressed |= advance_protocol(now);
  progressed |= advance(running_, now, looks);
  progressed |= advance(launching_, now, looks);
  if (device_runner_ != nullptr) {
    device_runner_->retire();
    launch_order_->serve();
  }
  if (has_left_ && !has_taken_leave_) has_taken_leave_ = have_all_left() && mailbox_.is_idle();
  return progressed;
}

bool Lane::take_submissions(Clock::time_point now) {
  TensorQueue::Taken taken = queue_.take();
  for (std::shared_ptr<Operation>& operation : taken.operations) {
    coordinator_.submit(operation->use, operation->request, to_time(now),
                        to_time(operation->deadline));
    operations_[operation->use] = std::move(operation);
  }
  if (taken.join != nullptr) {
    const UseId use = taken.join->use;
    operations_[use] = taken.join;
    coordinator_.join(use);
  }
  for (const UseId use : taken.awaited) coordinator_.wait_for(use);
  if (taken.is_leaving) coordinator_.shut_down();
  needs_peers_ = taken.is_leaving || queue_.in_flight() > 0;
  return !taken.operations.empty() || taken.join != nullptr;
}

bool Lane::read_mail() {
  // Nobody sends before this rank's header is there, unless the board itself goes by messages.
  if (tree_board_ == nullptr && !coordinator_.is_negotiating()) return false;
  bool progressed = false;
  while (auto mail = mailbox_.poll()) {
    progressed = true;
    auto& [from, message] = *mail;
    if (auto* negotiation = std::get_if<ControlMessage>(&message)) {
      coordinator_.on_message(from, std::move(*negotiation));
    } else if (tree_board_ != nullptr) {
      tree_board_->on_message(from, std::get<BoardMessage>(message));
    }
  }
  return progressed;
}

bool Lane::advance_protocol(Clock::time_point now) {
  bool progressed = false;
  for (;;) {
    coordinator_.on_ask(board_->highest_ask());
    carry_out(coordinator_.decide(to_time(now)));
    if (!coordinator_.awaits_headers()) break;
    const std::optional<Header> merged = board_->merged(coordinator_.exchange());
    if (!merged) break;
    coordinator_.on_headers(*merged);
    progressed = true;
  }
  if (coordinator_.is_closed() && is_data_at_rest() && !loss_ && !has_left_) {
    board_->leave();
    has_left_ = true;
  }
  return progressed;
}

void Lane::carry_out(Coordinator::Actions actions) {
  for (const Coordinator::Batch& batch : actions.run) start(batch);
  for (Coordinator::Failed& failed : actions.failed) {
    const auto found = operations_.extract(failed.use);
    complete(found.mapped(), to_exception(failed.failure));
  }
  if (actions.joined) {  // behind the data of what ran before
    const auto found = operations_.extract(actions.joined->use);
    found.mapped()->result = world_rank(actions.joined->last_rank);
    running_.push({wait_for(launching_.behind()), {found.mapped()}, Clock::time_point::max()});
  }
  for (const Verdict::Stall& stall : actions.stalls) {
    KOLO_LOG(Warn) << "stalled: '" << stall.name << "' on process set " << name_ << ": "
                   << list(stall.waiting_ranks) << " waited for longer than KOLO_STALL_WARN; "
                   << (stall.missing_ranks.empty()
                           ? "nobody is missing any more"
                           : list(stall.missing_ranks) + " did not submit it yet");
  }
  if (actions.post) board_->post(*actions.post);
  if (actions.ask) board_->ask(*actions.ask);
  for (auto& [to, message] : actions.send) mailbox_.send(to, std::move(message));
  if (actions.find_silent) give_up_silent_rank();
}

void Lane::start(const Coordinator::Batch& batch) {
  BatchRunner::Operations operations;
  auto deadline = Clock::time_point::max();
  for (const Coordinator::Batch::Item& item : batch.items) {
    if (item.use) {
      operations.push_back(operations_.extract(*item.use).mapped());
    } else if (item.request->device == DeviceKind::Cuda) {
      operations.push_back(device_runner_->make_identity(*item.request));
    } else {
      operations.push_back(runner_->make_identity(*item.request));
    }
    deadline = std::min(deadline, operations.back()->deadline);
  }
  if (operations.front()->request.device == DeviceKind::Cuda) {
    Task task = device_runner_->run(operations, batch.have_some_joined, overlaps_);
    launching_.push({std::move(task), std::move(operations), deadline});
  } else {
    // All sets overlap with the world, which has been alone so far.
    if (operations.front()->request.collective == Collective::AddProcessSet) {
      overlaps_ = size() > 1;
      if (launch_order_ != nullptr) launch_order_->expect_questions();
    }
    Task task = runner_->run(operations, batch.have_some_joined);
    running_.push({std::move(task), std::move(operations), deadline});
  }
}

/// Nothing moves, and nothing is under way on a GPU.
bool Lane::is_data_at_rest() const {
  return running_.empty() && launching_.empty() &&
         (device_runner_ == nullptr || device_runner_->is_idle());
}

bool Lane::advance(BatchQueue& batches, Clock::time_point now, int looks) {
  const BatchQueue::Step step = batches.advance(looks);
  for (const auto& operation : step.operations) complete(operation, step.error);
  if (batches.is_overdue(now, config_.lost_after)) give_up_silent_rank();
  return step.has_progressed;
}

}  // namespace kolo::runtime
