#include "runtime/engine/engine.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/intentional_leak.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "kolo/error.hpp"
#include "runtime/engine/backoff.hpp"

namespace kolo::runtime {

namespace {

// Waits between chunks are short, so a caller, which has nothing else to do, polls several times
// before it repeats the whole step. If ranks share cores, it polls less: the awaited rank needs the
// core.
constexpr int kPollsOnOwnCores = 128;
constexpr int kPollsOnSharedCores = 4;

Time to_time(Operation::Clock::time_point point) {
  return point == Operation::Clock::time_point::max() ? kNever : Time{point.time_since_epoch()};
}

// Of waits: shorter ones need no name of a rank, and what ends sooner no event before its end.
constexpr std::chrono::milliseconds kNotable{1};
constexpr std::chrono::milliseconds kBetweenLooks{5};

/// Completes "rank 3 is "; empty: unknown.
std::string describe(const insight::Recorder::Activity& activity) {
  if (activity.phase == insight::Phase::None) return {};
  const std::chrono::duration<double> time =
      insight::Clock::now().time_since_epoch() - activity.since;
  std::ostringstream text;
  text.precision(1);
  text << "in step " << activity.step << ": " << name_of(activity.phase) << ", for " << std::fixed
       << time.count() << " s";
  return text.str();
}

/// For error texts; a join has no request.
std::string what_of(const Operation& operation) {
  return operation.role == OperationRole::Join ? "join" : describe(operation.request);
}

ControlPlane::Parts with_insight(ControlPlane::Parts parts, insight::Recorder& recorder,
                                 std::function<void(const LostRank&)> report_lost) {
  parts.to_world_clock = recorder.origin().to_world_clock;
  parts.activity = [&recorder] { return describe(recorder.activity()); };
  parts.report_lost = std::move(report_lost);
  return parts;
}

}  // namespace

Engine::Engine(Parts parts, comm::World& world, std::shared_ptr<insight::Insight> insight)
    : world_(world),
      insight_(std::move(insight)),
      spin_(spin_of(parts.set.config, world.topology(), parts.order != nullptr)),
      heap_(parts.set.heap),
      rank_(parts.set.communicator->rank()),
      number_(parts.number),
      is_matched_by_order_(parts.order != nullptr),
      queue_(parts.set.name, parts.order != nullptr),
      set_(std::move(parts.set)),
      executor_(set_, std::move(parts.messages), std::move(parts.device), world),
      meter_(insight_->take_meter()),
      control_(std::make_unique<ControlPlane>(
          with_insight(std::move(parts.control), recorder(),
                       // Called in steps alone and so under the lock, which Clang does not see.
                       [this](const auto& lost)
                           KOLO_NO_THREAD_SAFETY_ANALYSIS { report_lost(lost); }),
          set_, world)),
      order_(parts.order),
      progress_thread_(
          {.try_progress = [this] { return try_progress(); },
           .is_needed = [this] { return waiters_.count == 0 && queue_.in_flight() > 0; },
           .spin = [this] { return launch_spin(); }}) {
  recorder().name_set(number_, set_.name);
}

Engine::~Engine() = default;

// --- any thread ---

DeviceRunner& Engine::device_runner() {
  if (executor_.device_runner() == nullptr) {
    throw InvalidArgument(
        "the tensor lies on a CUDA device, but this build of Kolo is for CPUs alone. Configure it "
        "with KOLO_WITH_CUDA=ON where CUDA Toolkit 12.4 or newer and NCCL are installed, or copy "
        "the tensor to the CPU");
  }
  return *executor_.device_runner();
}

void Engine::prepare(Operation& operation) {
  if (operation.request.device == DeviceKind::Cuda) device_runner().prepare(operation);
}

comm::Gpu& Engine::gpu(int index) { return device_runner().gpu(index); }

bool Engine::adds_in_rank_order(Collective collective) const {
  return set_.choices.algorithms.preferred(collective) == "direct";
}

void Engine::finish(const Operation& operation, comm::DeviceStream stream) {
  try {
    if (operation.device.done != nullptr) executor_.device_runner()->order_after(operation, stream);
  } catch (const Error&) {
    if (!operation.error) throw;
  }
  if (operation.error) std::rethrow_exception(operation.error);
  // What was launched may have been aborted in the middle.
  if (operation.device.done != nullptr && has_lost_) throw_lost(operation);
}

void Engine::throw_lost(const Operation& operation) const {
  std::rethrow_exception(lost_error(operation, *lost_));
}

/// Precedes everything that acts for this rank.
void Engine::require_creator_process() const {
  if (creator_.is_current()) return;
  throw InvalidArgument("process set " + set_.name +
                        ": this process is a forked child of the one that started Kolo, and is not "
                        "a rank. Use Kolo in the parent, or start it after fork().");
}

/// The calling thread runs a function of the program inside a step, which all operations of the
/// engine wait for.
void Engine::require_outside_step(std::string_view what) const {
  if (!progress_mutex_.is_mine()) return;
  throw InvalidArgument(
      std::string(what) + " on process set " + set_.name +
      ": called by a function that runs inside an operation of this set (AllocateRows, a "
      "CustomReduction, an algorithm), where it would wait for itself. Call it after the "
      "operation; "
      "there, only submit with _async forms.");
}

std::string Engine::next_name(std::string_view kind) {
  require_creator_process();
  return queue_.next_name(kind);
}

std::string Engine::next_prefix(std::string_view kind) {
  require_creator_process();
  return queue_.next_prefix(kind);
}

void Engine::submit(std::shared_ptr<Operation> operation) {
  require_creator_process();
  enqueue(std::move(operation));
  progress_thread_.notify();
}

void Engine::enqueue(std::shared_ptr<Operation> operation) {
  begin_course(*operation);
  if (!is_on_gpu(*operation)) {
    queue_.submit(std::move(operation));
    return;
  }
  const Lock lock(lining_up_);
  executor_.device_runner()->line_up(*operation);
  queue_.submit(std::move(operation));
  ++on_gpu_;
}

bool Engine::is_on_gpu(const Operation& operation) const {
  return executor_.device_runner() != nullptr && operation.request.device == DeviceKind::Cuda &&
         !operation.is_message();
}

std::chrono::nanoseconds Engine::launch_spin() const {
  return spin_.count() > 0 && on_gpu_ > 0 ? kLaunchSpin : std::chrono::nanoseconds{0};
}

void Engine::run(const std::shared_ptr<Operation>& operation) {
  require_creator_process();
  require_outside_step("a blocking operation");
  enqueue(operation);
  wait(*operation, Clock::time_point::max(), operation->course.begin);
}

void Engine::join(std::shared_ptr<Operation> operation) {
  require_creator_process();
  require_outside_step("join");
  if (is_matched_by_order_) {
    throw InvalidArgument("join on process set " + set_.name +
                          ": its operations are matched by order (Matching::ByOrder), so all ranks "
                          "submit each of them. Join a set that matches them by name.");
  }
  queue_.join(std::move(operation));
  progress_thread_.notify();
}

/// A caller that makes progress until its own operation is done; the progress thread pauses
/// meanwhile.
class Engine::Waiter {
 public:
  explicit Waiter(Engine& engine) : engine_(engine) { ++engine_.waiters_.count; }
  Waiter(const Waiter&) = delete;  // counted once
  Waiter& operator=(const Waiter&) = delete;
  ~Waiter() {
    --engine_.waiters_.count;
    if (engine_.queue_.in_flight() > 0) engine_.progress_thread_.notify();
  }

 private:
  Engine& engine_;
};

void Engine::announce_wait(Operation& operation) {
  if (!operation.is_awaited.exchange(true)) queue_.await(operation.use);
}

int Engine::polls_per_step() const {
  return spin_.count() > 0 ? kPollsOnOwnCores : kPollsOnSharedCores;
}

bool Engine::poll(Operation& operation) {
  const auto is_done = [&] { return operation.is_done.load(std::memory_order_acquire); };
  // A function of the program may ask while it runs inside a step.
  if (is_done() || !creator_.is_current() || progress_mutex_.is_mine()) return is_done();
  announce_wait(operation);
  const bool has_progressed = try_step(polls_per_step());
  // A program that asks again and again keeps the core from the rank that it waits for.
  if (!has_progressed && spin_.count() == 0) std::this_thread::yield();
  return is_done();
}

bool Engine::wait(Operation& operation, Clock::time_point until) {
  return operation.is_done.load(std::memory_order_acquire) ||
         wait(operation, until, insight::time_of(Clock::now()));
}

void Engine::notify(Operation& operation, std::function<void()> notice) {
  {
    const Lock lock(waiters_.mutex);
    if (!operation.is_done.load(std::memory_order_acquire)) {
      operation.notices.push_back(std::move(notice));
      return;
    }
  }
  notice();
}

/// `since`: when the caller began to wait.
bool Engine::wait(Operation& operation, Clock::time_point until, insight::Event::Time since) {
  const auto is_done = [&] { return operation.is_done.load(std::memory_order_acquire); };
  require_creator_process();
  require_outside_step("a wait");
  announce_wait(operation);
  const Waiter waiter(*this);
  const bool is_bounded = until != Clock::time_point::max();
  Backoff backoff(spin_);
  while (!is_done()) {
    const bool has_progressed = try_step(polls_per_step());
    if (is_bounded && Clock::now() >= until) break;
    if (has_progressed) {
      backoff.reset();
    } else if (const auto pause = backoff.next_pause(launch_spin()); pause.count() > 0) {
      // Another thread may make the progress that completes the operation.
      const Lock lock(waiters_.mutex);
      waiters_.operation_is_done.wait_for(waiters_.mutex, pause, is_done);
    }
  }
  const bool has_ended = is_done();
  const auto end = has_ended ? operation.ended : Clock::now();
  recorder().add_blocked(std::max(insight::time_of(end) - since, insight::Event::Time{0}));
  return has_ended;
}

bool Engine::try_progress() { return waiters_.count == 0 && try_step(1); }

std::vector<int> Engine::joined_ahead() {
  require_outside_step("the question who has joined");
  std::vector<int> ranks;
  const Lock lock(progress_mutex_);
  if (control_ == nullptr) return ranks;
  control_->coordinator().joined_ahead().for_each(
      [&](int rank) { ranks.push_back(world_rank(rank)); });
  return ranks;
}

Engine::Metrics Engine::metrics() {
  require_creator_process();
  require_outside_step("metrics()");
  const Lock lock(progress_mutex_);
  return control_ == nullptr ? at_end_ : measure();
}

Engine::Metrics Engine::measure() {
  return {control_->coordinator().counters(), bytes(), executor_.gpu_seconds()};
}

kolo::Metrics::Bytes Engine::bytes() {
  kolo::Metrics::Bytes bytes = executor_.bytes();
  bytes.headers = control_->header_bytes();
  return bytes;
}

// --- the progress step ---

bool Engine::try_step(int polls) {
  if (!progress_mutex_.try_lock()) return false;
  const Lock lock(progress_mutex_, std::adopt_lock);
  return step(polls);
}

bool Engine::step(int polls) {
  if (control_ == nullptr) return false;
  try {
    const bool has_progressed = make_progress(Clock::now(), polls);
    if (notice_error_) std::rethrow_exception(std::exchange(notice_error_, nullptr));
    return has_progressed;
  } catch (const OrderBroken& broken) {
    declare_lost(lost_by(broken));
  } catch (const comm::RemoteError& error) {
    // No data moves any more. Heartbeats, which say which rank is lost, take longer to miss.
    cut_off_ = {error.what(), later(Clock::now(), set_.longest_silence())};
  } catch (...) {  // batches call functions of the program, which may throw anything
    // The other ranks may be in the middle of a batch and wait for this rank's share of it.
    const std::string how = "failed: " + text_of_current_exception();
    // Ranks that run different operations send what the others do not expect.
    declare_lost(find_broken_order().value_or(LostRank{rank(), how}));
  }
  return true;
}

/// What another rank has found before counts.
LostRank Engine::lost_by(const OrderBroken& broken) {
  LostRank own{broken.rank, broken.how, broken.kind};
  try {
    return control_->published_lost().value_or(own);
  } catch (const BackendError&) {  // what another rank has published is damaged
    return own;
  }
}

std::optional<LostRank> Engine::find_broken_order() {
  try {
    if (order_ != nullptr) order_->check();
  } catch (const OrderBroken& broken) {
    return lost_by(broken);
  } catch (const Error&) {  // what happened before counts
  }
  return std::nullopt;
}

/// The first operation does not advance. Throws OrderBroken if it never will: another rank runs a
/// different one, has left, or has not come in time.
void Engine::check_order(Clock::time_point now) {
  if (executor_.first_on_cpu().empty()) return;
  const Operation* const first = executor_.first_on_cpu().front().get();
  if (control_->coordinator().is_closed()) order_->listen_to_all();
  order_->check();
  if (now < first->deadline) return;
  constexpr const char* kInTime =
      " in time. Submit it on all ranks, or raise the timeout "
      "(KOLO_TIMEOUT, OperationOptions::timeout).";
  if (const std::vector<int> missing = order_->not_begun(); !missing.empty()) {
    throw OrderBroken{ErrorKind::Timeout, missing.front(),
                      "did not submit " + order_->place() + kInTime};
  }
  // The rank that is missing may be one of which another rank than this one knows.
  if (now < later(first->deadline, set_.longest_silence())) return;
  throw OrderBroken{ErrorKind::Timeout, rank(), "did not end " + order_->place() + kInTime};
}

bool Engine::make_progress(Clock::time_point now, int polls) {
  note_wait(now);
  bool has_progressed = take_submissions(now);
  if (lost_) {  // no data moves any more: new submissions fail immediately
    carry_out(control_->decide(now));
    return end_stopped_batches(now) || has_progressed;
  }
  has_progressed |= control_->receive();
  if (!control_->have_all_left()) {
    const bool may_ask = !control_->has_left();  // a rank that has left sends nothing but losses
    if (const auto lost = control_->find_lost(now, needs_peers_ && may_ask)) {
      declare_lost(*lost);
    }
  }
  has_progressed |= advance_protocol(now);
  if (cut_off_ && !lost_) {
    if (now >= cut_off_->until) declare_lost({rank(), "failed: " + cut_off_->how});
    return has_progressed;
  }
  const BatchExecutor::Progress progress = executor_.advance(
      now, polls,
      // Called in advance() alone and so under the lock, which Clang does not see there.
      [&](const auto& operation, const std::exception_ptr& error) KOLO_NO_THREAD_SAFETY_ANALYSIS {
        complete(operation, error ? error : find_lost_error(*operation));
      });
  has_waited_ = !progress.has_progressed && !executor_.first_on_cpu().empty();
  if (order_ != nullptr && !progress.has_progressed) check_order(now);
  if (progress.is_overdue) declare_silent_rank_lost();
  if (now >= next_look_) note_pending(now, kNotable);
  return has_progressed || progress.has_progressed;
}

bool Engine::take_submissions(Clock::time_point now) {
  TensorQueue::Taken taken = queue_.take();
  Coordinator& coordinator = control_->coordinator();
  for (std::shared_ptr<Operation>& operation : taken.operations) {
    operation->course.use = operation->use;
    if (start_alone(operation, now)) continue;
    const UseId use = operation->use;
    coordinator.submit(use, operation->request, to_time(now), to_time(operation->deadline),
                       operation->course.begin);
    operations_[use] = std::move(operation);
  }
  if (taken.join != nullptr) {
    const UseId use = taken.join->use;
    operations_[use] = taken.join;
    coordinator.join(use);
  }
  for (const UseId use : taken.awaited) coordinator.wait_for(use);
  if (taken.leaving) coordinator.shut_down(*taken.leaving);
  needs_peers_ = taken.leaving.has_value() || queue_.in_flight() > 0;
  return !taken.operations.empty() || taken.join != nullptr;
}

/// Whether the operation runs without an agreement of the ranks: it is a message between two, or
/// they are matched by order. Once the set is closed, the coordinator says why it does not run;
/// but messages that were sent before may still be received.
bool Engine::start_alone(const std::shared_ptr<Operation>& operation, Clock::time_point now) {
  const bool is_receive = operation->request.collective == Collective::Receive;
  if (lost_ || (executor_.messages().is_closed() && !is_receive)) return false;
  if (operation->is_message()) {
    executor_.messages().start(operation);
  } else if (order_ != nullptr) {
    note_agreed(*operation, insight::time_of(now), {});
    executor_.start_in_order(operation, *order_);
  } else {
    return false;
  }
  return true;
}

bool Engine::advance_protocol(Clock::time_point now) {
  bool has_progressed = false;
  for (;;) {
    carry_out(control_->decide(now));
    if (!control_->end_exchange()) break;
    has_progressed = true;
  }
  leave_when_closed(now);
  return has_progressed;
}

void Engine::carry_out(Coordinator::Actions actions) {
  for (const Coordinator::Batch& batch : actions.run) start(batch);
  for (const Coordinator::Failed& failed : actions.failed) {
    complete(operations_.extract(failed.use).mapped(), to_exception(failed.failure));
  }
  if (actions.joined) {
    std::shared_ptr<Operation> join = operations_.extract(actions.joined->use).mapped();
    join->last_joined = world_rank(actions.joined->last_rank);
    executor_.start_join(std::move(join));
  }
  for (const Verdict::Stall& stall : actions.stalls) report_stall(stall);
  control_->send(actions);
  if (actions.find_silent) declare_silent_rank_lost();
}

void Engine::start(const Coordinator::Batch& batch) {
  Operations operations;
  const insight::Event::Time now = insight::time_of(Clock::now());
  for (const Coordinator::Batch::Item& item : batch.items) {
    operations.push_back(item.use ? operations_.at(*item.use)
                                  : executor_.make_stand_in(*item.request));
    note_agreed(*operations.back(), now, batch.last);
  }
  executor_.start(std::move(operations), batch.have_some_joined);
  for (const Coordinator::Batch::Item& item : batch.items) {
    if (item.use) operations_.erase(*item.use);
  }
}

void Engine::report_stall(const Verdict::Stall& stall) const {
  meter_.count_stall();
  const std::string missing =
      stall.missing_ranks.empty()
          ? "no rank is missing any more"
          : list_world_ranks(stall.missing_ranks, set_.world_ranks) + " did not submit it yet";
  KOLO_LOG(Warn) << "stalled: '" << stall.name << "' on process set " << set_.name << ": "
                 << list_world_ranks(stall.waiting_ranks, set_.world_ranks)
                 << " waited for longer than KOLO_STALL_WARN; " << missing << stall.activities;
}

// --- traces ---

void Engine::begin_course(Operation& operation) const {
  insight::Event& course = operation.course;
  const insight::Recorder::Activity activity = recorder().activity();
  course.collective = static_cast<std::uint8_t>(operation.request.collective);
  course.phase = activity.phase;
  course.step = activity.step;
  course.set = number_;
  course.bytes = operation.request.size_bytes();
  if (operation.is_message() && operation.message.peer >= 0) {
    course.peer = world_rank(operation.message.peer);
  }
}

/// `last`: who submitted last what the ranks waited for, and when, as another rank says.
void Engine::note_agreed(Operation& operation, insight::Event::Time now,
                         const std::optional<std::pair<int, Time>>& last) {
  insight::Event& course = operation.course;
  course.turn = ++turns_;
  course.agreed = now;
  if (!last) return;
  course.last_rank = world_rank(last->first);
  course.last_at = std::min(last->second, now);  // clocks differ by a little
}

/// If no data have advanced since the last step, that was a wait of the first operations.
void Engine::note_wait(Clock::time_point now) {
  const auto since_last_step = now - std::exchange(step_, now);
  const auto operations = executor_.first_on_cpu();
  if (!has_waited_ || operations.empty()) return;
  for (const auto& operation : operations) operation->course.waited += since_last_step;
  const insight::Event& course = operations.front()->course;
  if (course.waited < look_after_) return;
  look_after_ = 2 * course.waited;
  const int rank = awaited();
  for (const auto& operation : operations) operation->course.waited_for = rank;
}

/// The world rank for which the data of the first operations on the CPU wait; -1: not known.
int Engine::awaited() {
  // Ranks that have not begun are asked first: they do not wait in any memory yet.
  if (order_ != nullptr) {
    if (const std::vector<int> ranks = order_->not_begun(); !ranks.empty()) {
      return world_rank(ranks.front());
    }
  }
  return set_.awaited();
}

/// The world rank that an operation waits for now; -1: not known.
int Engine::awaited(const Operation& operation) {
  if (operation.is_message()) return operation.course.peer;
  if (operation.course.turn > 0) {  // it moves, or those before it do
    return operation.request.device == DeviceKind::Cpu ? awaited() : -1;
  }
  const int rank = control_->awaited(operation.use);
  return rank < 0 ? -1 : world_rank(rank);
}

/// Adds operations that are older than `age`, again at each stage that they reach; the oldest also
/// when it waits for another rank, but not so often that it replaces all other events.
void Engine::note_pending(Clock::time_point now, std::chrono::nanoseconds age) {
  next_look_ = now + kBetweenLooks;
  const insight::Event::Time time = insight::time_of(now);
  const auto for_each = [&](const auto& visit) KOLO_NO_THREAD_SAFETY_ANALYSIS {
    for (const auto& [use, operation] : operations_) visit(*operation);
    executor_.for_each(visit);
  };
  const Operation* oldest = nullptr;
  for_each([&](const Operation& operation) {
    if (operation.role != OperationRole::Submitted || time - operation.course.begin < age) return;
    const bool is_older = oldest == nullptr || operation.course.begin < oldest->course.begin;
    if (is_older) oldest = &operation;
  });
  if (oldest == nullptr) return meter_.set_open_wait({}, -1);
  meter_.set_open_wait(oldest->course.begin, awaited(*oldest));
  for_each([&](Operation& operation) KOLO_NO_THREAD_SAFETY_ANALYSIS {
    const insight::Event& course = operation.course;
    if (operation.role != OperationRole::Submitted || time - course.begin < age) return;
    const bool has_started = operation.started != Clock::time_point{};
    const int stages = 1 + (course.turn > 0) + has_started;
    if (operation.noted >= stages && &operation != oldest) return;
    const int rank = awaited(operation);
    const auto waited = time - course.begin;
    const bool is_due = age.count() == 0 || waited >= 2 * operation.noted_age;
    if (operation.noted >= stages && (operation.noted_for == rank || !is_due)) return;
    operation.noted_age = waited;
    operation.noted = static_cast<std::uint8_t>(stages);
    operation.noted_for = rank;
    insight::Event event = course;
    event.kind = insight::Event::Kind::Pending;
    event.waited_for = rank;
    event.time = time;
    event.started = insight::time_of(operation.started);
    recorder().add(event, operation.request.name);
  });
}

void Engine::note_ended(Operation& operation, const std::optional<Failure>& failure) {
  insight::Event& course = operation.course;
  course.kind = insight::Event::Kind::Ended;
  course.started = insight::time_of(operation.started);
  course.time = insight::time_of(operation.ended);
  if (operation.role == OperationRole::Join) return;  // no collective
  look_after_ = kNotable;
  if (failure) course.failure = static_cast<std::uint8_t>(1 + static_cast<int>(failure->kind));
  recorder().add(course, operation.request.name);
  meter_.end_open_wait(course.begin);
  meter_.set(bytes());
  meter_.count(course);
}

// --- the end, orderly ---

void Engine::end(const std::string& why, Leaving how) {
  require_outside_step("shutdown or removal");
  queue_.leave(how);
  Backoff backoff(Backoff::Duration{0});
  auto give_up_at = Clock::time_point::max();
  for (;;) {
    bool has_progressed = false;
    {
      const Lock lock(progress_mutex_);
      if (control_ == nullptr) break;  // another thread was faster
      has_progressed = step(1);
      const bool is_idle = lost_ ? !executor_.has_stopped_batches() : executor_.is_idle();
      const bool is_over = is_idle && (lost_ || control_->have_all_left());
      const bool gives_up = is_idle && !is_over && Clock::now() > give_up_at;
      if (gives_up) world_.mark_broken();
      if (is_over || gives_up) {
        release(why);
        break;
      }
      const bool is_closed = control_->coordinator().is_closed();
      if (is_idle && is_closed && give_up_at == Clock::time_point::max()) {
        // Silence is not detected from here on.
        give_up_at = later(Clock::now(), set_.longest_silence());
      }
    }
    if (has_progressed) {
      backoff.reset();
    } else {
      std::this_thread::sleep_for(backoff.next_pause());
    }
  }
  progress_thread_.stop();
}

/// Receives may wait when a rank leaves: only when all have left, it is sure that nothing arrives.
void Engine::leave_when_closed(Clock::time_point now) {
  if (lost_ || !control_->coordinator().is_closed()) return;
  PointToPoint& messages = executor_.messages();
  if (!messages.is_closed()) {
    take_submissions(now);  // since this step began, and before another rank closed the set
    messages.close(control_->coordinator().why_closed());
  }
  if (!control_->has_left() && executor_.is_idle() && messages.is_delivered()) {
    if (order_ != nullptr) order_->leave();
    control_->leave();
  }
  if (control_->have_all_left()) messages.end();
}

/// A thread that waits for an operation may be about to begin another step, and the program may
/// keep the engine by handles and sets for as long as it likes.
void Engine::release(const std::string& why) {
  queue_.stop(why);
  executor_.messages().end();
  step(1);  // ends operations submitted since the set was closed
  if (order_ != nullptr && !lost_) order_->end();
  control_->end();
  at_end_ = measure();
  meter_.set(at_end_.bytes);
  insight_->give_back(meter_);
  order_ = nullptr;
  control_.reset();
  executor_.release();
  set_.release();
}

void Engine::complete(const std::shared_ptr<Operation>& operation, std::exception_ptr error) {
  if (operation->role == OperationRole::StandIn) return;  // no thread waits for it
  queue_.release(*operation);
  if (is_on_gpu(*operation)) --on_gpu_;
  operation->device.turn.reset();
  operation->error = std::move(error);
  operation->ended = Clock::now();
  // Before the program has the error, too: ThreadSanitizer does not see who destroys it last.
  std::optional<Failure> failure;
  if (operation->error) failure = failure_of(operation->error);
  note_ended(*operation, failure);
  std::vector<std::function<void()>> notices;
  {
    const Lock lock(waiters_.mutex);
    operation->is_done.store(true, std::memory_order_release);
    notices.swap(operation->notices);
  }
  waiters_.operation_is_done.notify_all();
  for (const auto& notice : notices) {
    try {
      notice();
    } catch (...) {  // what is being ended goes on
      notice_error_ = std::current_exception();
    }
  }
  if (failure) {
    insight_->note(
        {std::move(*failure), lost_ ? world_rank(lost_->rank) : -1, operation->course.time});
  }
}

// --- the end, by a loss ---

/// Names an operation for which this rank waits, if there is one: its error says the same.
void Engine::report_lost(const LostRank& lost) {
  const Operation* first = nullptr;
  const auto look = [&](const Operation& operation) {
    if (operation.role == OperationRole::StandIn) return;
    if (first == nullptr || operation.use < first->use) first = &operation;
  };
  for (const auto& [use, operation] : operations_) look(*operation);
  executor_.for_each(look);
  const std::string ending = set_.rank_text(lost.rank) + " " + lost.how;
  const std::string set = "process set " + set_.name + ": " + ending;
  insight_->report(first != nullptr ? what_of(*first) + " on " + set : set,
                   first != nullptr ? ending : set);
}

/// Every loss ends here, the first one alone counts:
///
///   learnt from                                     | seen by
///   the end of a process on this host               | LossWatch::check, asked by make_progress
///   what another rank has published                 | LossWatch::check, likewise
///   a host without heartbeats                       | Heartbeats::check, likewise
///   a rank's silence at a deadline or in a shutdown | Coordinator or BatchExecutor; then
///                                                   | LossWatch::find_silent says which rank
///   different operations, matched by order          | OrderBroken, which ends a step
///   any other exception in a step                   | step: this rank is the lost one
///   the program, or a set that cannot be made       | fail: likewise
///
/// A process that dies by an uncaught exception only publishes its loss: publish_end.
void Engine::declare_lost(const LostRank& lost) {
  if (lost_) return;
  const auto now = Clock::now();
  note_pending(now, Clock::duration{0});  // while the control plane knows who is missing
  lost_ = lost;
  has_lost_ = true;
  world_.mark_broken();
  control_->declare_lost(lost);
  if (order_ != nullptr) order_->give_up();
  const std::string what = set_.rank_text(lost.rank) + " " + lost.how;
  executor_.abort(what);
  insight_->note({{lost.kind, what}, world_rank(lost.rank), insight::time_of(now)});
  end_stopped_batches(now);
  carry_out(control_->decide(now));
  // A step that failed may not have carried out all that was decided.
  for (const auto& [use, operation] : std::exchange(operations_, {})) {
    complete(operation, lost_error(*operation, lost));
  }
}

/// MPI and GPUs may still read the memory of these batches, so it leaks intentionally.
bool Engine::end_stopped_batches(Clock::time_point now) {
  LostBatches::Batches drained = executor_.take_drained(now);
  for (BatchQueue::Batch& batch : drained) {
    for (const auto& operation : batch.operations) {
      complete(operation, lost_error(*operation, *lost_));
    }
    leak_intentionally(std::move(batch));
  }
  return !drained.empty();
}

/// A rank that knows of a loss may already have overwritten what others read of its memory.
/// Null if no rank knew of a loss when the operation ended here.
std::exception_ptr Engine::find_lost_error(const Operation& operation) {
  if (!operation.is_accessed_by_peers()) return nullptr;
  try {
    const std::optional<LostRank> lost = control_->published_lost();
    return lost ? lost_error(operation, *lost) : nullptr;
  } catch (const BackendError&) {  // what another rank has published is damaged
    return std::current_exception();
  }
}

void Engine::fail(const std::string& how) {
  const Lock lock(progress_mutex_);
  if (control_ != nullptr) declare_lost({rank(), how});
}

std::exception_ptr Engine::lost_error(const Operation& operation, const LostRank& lost) const {
  return to_exception({lost.kind, what_of(operation) + " on process set " + set_.name + ": " +
                                      set_.rank_text(lost.rank) + " " + lost.how});
}

std::optional<LostRank> Engine::lost_rank() {
  // A function of the program may be held in another thread's step.
  if (!progress_mutex_.try_lock()) return std::nullopt;
  const Lock lock(progress_mutex_, std::adopt_lock);
  return lost_;
}

bool Engine::has_ended(int rank) {
  if (!progress_mutex_.try_lock()) return false;
  const Lock lock(progress_mutex_, std::adopt_lock);
  return control_ != nullptr ? control_->has_ended(rank) : rank == rank_;
}

bool Engine::is_lost() {
  require_creator_process();
  require_outside_step("removal");
  const Lock lock(progress_mutex_);
  return lost_.has_value();
}

void Engine::declare_silent_rank_lost() {
  if (const auto lost = control_->find_silent()) declare_lost(*lost);
}

bool Engine::report_end(const std::string& how, const std::string& why) {
  return insight_->report(how, why, /*is_last=*/true);
}

void Engine::publish_end(const std::string& how) {
  if (!creator_.is_current()) return;
  // Not during another thread's step, which uses the control plane. A step that takes longer than
  // this hangs in a function of the program; the other ranks then see that the process has ended.
  constexpr int kLongestStepMs = 500;
  std::unique_lock lock(progress_mutex_, std::defer_lock);
  const bool is_in_step = progress_mutex_.is_mine();
  for (int ms = 0; !is_in_step && ms < kLongestStepMs && !lock.try_lock(); ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if ((is_in_step || lock.owns_lock()) && control_ != nullptr)
    control_->publish_lost({rank(), how});
  insight_->note({{ErrorKind::PeerLost, set_.rank_text(rank_) + " " + how},
                  world_rank(rank_),
                  insight::time_of(Clock::now())},
                 /*is_last=*/true);
}

}  // namespace kolo::runtime
