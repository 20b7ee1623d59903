#include "insight/insight.hpp"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <exception>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "insight/metrics_server.hpp"

namespace kolo::insight {
namespace {

thread_local bool is_in_metrics_function = false;  // of start_metrics()

constexpr std::chrono::hours kForEver{24 * 365};  // clocks count nanoseconds

/// Errors of the program's arguments and orderly ends need no record.
bool is_worth_a_record(ErrorKind kind) {
  return kind != ErrorKind::InvalidArgument && kind != ErrorKind::Shutdown;
}

}  // namespace

Insight::Insight(Origin origin, std::string records)
    : recorder_(std::move(origin)), records_(std::move(records)) {
  if (records_.empty()) return;
  // Mpirun passes SIGUSR2 on to all ranks, and ends them by SIGTERM.
  questions_.emplace({SIGUSR2, SIGTERM, SIGUSR1}, [this](std::string_view why) {
    // All ranks of a job that is ended get SIGTERM, those of one that has failed, too.
    const bool is_asked = why.ends_with("SIGUSR2");
    try_to_record(why, is_asked || (recorder_.origin().rank == 0 && !has_said_where_));
    write_metrics();
  });
}

Insight::~Insight() = default;

bool Insight::report(const std::string& text, const std::string& ending, bool is_last) {
  const Lock lock(report_lock_);
  const bool is_known =
      !reported_.empty() && (text.ends_with(reported_ending_) || reported_.ends_with(ending));
  if (std::exchange(has_reported_last_, has_reported_last_ || is_last) || is_known) return false;
  reported_ = text;
  reported_ending_ = ending;
  const bool says_where = !records_.empty() && !has_said_where_.exchange(true);
  KOLO_LOG(Error) << text << (says_where ? " (" + command() + " says what led to it)" : "");
  return true;
}

void Insight::note(Recorder::Problem problem, bool is_last) noexcept {
  try {
    if (!is_worth_a_record(problem.failure.kind)) return;
    const std::string text = problem.failure.text;
    recorder_.add(std::move(problem));
    if (!creator_.is_current()) return;
    if (!record_lock_.try_lock()) return;  // one is being written
    {
      const Lock lock(record_lock_, std::adopt_lock);
      const auto now = Clock::now();
      if (now < next_record_ && !is_last) return;
      next_record_ = now + kRecordPause;
    }
    if (!records_.empty()) try_to_record(text, !has_said_where_.exchange(true));
    write_metrics();
  } catch (const std::exception& error) {  // no memory
    KOLO_LOG(Warn) << "no record of the error: " << error.what();
  }
}

void Insight::try_to_record(std::string_view why, bool says_where) noexcept {
  try {
    const std::string path = write_record(records_, why);
    if (!says_where) return;
    KOLO_LOG(Warn) << "wrote what this rank did last to " << path << "; " << command()
                   << " reads the records of all ranks";
  } catch (const std::exception& error) {
    KOLO_LOG(Warn) << error.what();
  }
}

/// What a user may paste into a shell, and where.
std::string Insight::command() const {
  const Origin& origin = recorder_.origin();
  std::error_code error;
  std::string folder = std::filesystem::absolute(records_, error).string();
  if (error) folder = records_;
  constexpr std::string_view kPlain = "/._-+=:,@%";
  const bool is_plain = std::ranges::all_of(folder, [&](unsigned char letter) {
    return std::isalnum(letter) != 0 || kPlain.find(static_cast<char>(letter)) != kPlain.npos;
  });
  if (!is_plain) {
    for (std::size_t at = 0; (at = folder.find('\'', at)) != std::string::npos; at += 4) {
      folder.replace(at, 1, "'\\''");
    }
    folder = "'" + folder + "'";
  }
  const bool is_one_host =
      std::ranges::count(origin.node_of_rank, 0) == std::ssize(origin.node_of_rank);
  return "kolo-trace why " + folder + (is_one_host ? "" : " on " + origin.host);
}

void Insight::require_creator_process() const {
  if (creator_.is_current()) return;
  throw InvalidArgument(
      "records, timelines and metrics: this process is a forked child of the one that started "
      "Kolo, and is not a rank. Call this in the parent.");
}

std::string Insight::write_record(const std::string& folder, std::string_view why) {
  require_creator_process();
  {
    const Lock lock(timeline_lock_);
    std::error_code none;
    if (timeline_ != nullptr && std::filesystem::equivalent(folder, timeline_folder_, none)) {
      throw InvalidArgument("record in " + folder +
                            ": this rank writes a timeline there, of the same name. Choose another "
                            "folder (dump_record, KOLO_RECORD).");
    }
  }
  const Lock lock(record_lock_);
  std::string path = insight::write_record(recorder_, folder, why);
  records_written_.fetch_add(1, std::memory_order_relaxed);
  return path;
}

void Insight::start_timeline(const std::string& folder) {
  require_creator_process();
  const Lock lock(timeline_lock_);
  timeline_.reset();  // ends its file, which may be the same
  timeline_ = std::make_unique<Timeline>(recorder_, folder);
  timeline_folder_ = folder;
}

void Insight::stop_timeline() {
  require_creator_process();
  const Lock lock(timeline_lock_);
  timeline_.reset();
}

Meter& Insight::take_meter() {
  const Lock lock(meters_lock_);
  if (free_meters_.empty()) return meters_.emplace_back(recorder_.origin());
  Meter& meter = *free_meters_.back();
  free_meters_.pop_back();
  meter.restart();
  return meter;
}

void Insight::give_back(Meter& meter) {
  const Lock lock(meters_lock_);
  free_meters_.push_back(&meter);
}

Metrics Insight::metrics() const {
  require_creator_process();
  Metrics metrics;
  metrics.elapsed_seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  const auto ranks = static_cast<std::size_t>(recorder_.origin().size);
  metrics.late_seconds.resize(ranks);
  metrics.data_wait_seconds.resize(ranks);
  metrics.open_wait_seconds.resize(ranks);
  const auto seconds = [](Event::Time time) { return std::chrono::duration<double>(time).count(); };
  metrics.blocked_seconds = seconds(recorder_.blocked());
  metrics.steps = recorder_.steps();
  metrics.exposed_seconds = seconds(recorder_.exposed());
  if (const Event::Time last = recorder_.last_step(); last.count() > 0) {
    const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
    metrics.last_step_time = seconds(since_epoch - (time_of(Clock::now()) - last));
  }
  metrics.records = records_written_.load(std::memory_order_relaxed);
  const Lock lock(meters_lock_);
  for (const Meter& meter : meters_) meter.add_to(metrics);
  return metrics;
}

void Insight::require_outside_metrics_function(std::string_view call) {
  if (!is_in_metrics_function) return;
  throw InvalidArgument(std::string(call) +
                        " waits for the function of start_metrics(), and is called in it. Call it "
                        "in another thread.");
}

void Insight::start_metrics(std::chrono::milliseconds interval,
                            std::function<void(const Metrics&)> function) {
  require_creator_process();
  require_outside_metrics_function("start_metrics()");
  if (function == nullptr) {
    throw InvalidArgument(
        "start_metrics: there is no function. To end the calls, use stop_metrics().");
  }
  if (interval.count() <= 0) {
    throw InvalidArgument("start_metrics: the interval is " + std::to_string(interval.count()) +
                          " ms. It must be positive.");
  }
  auto call = [this, function = std::move(function), has_warned = false](bool) mutable {
    is_in_metrics_function = true;
    try {
      function(metrics());
    } catch (...) {
      if (!std::exchange(has_warned, true)) {
        KOLO_LOG(Warn) << "the function of start_metrics() threw: " << text_of_current_exception();
      }
    }
    return true;
  };
  const Lock lock(listener_lock_);
  listener_.reset();  // waits for its last call
  listener_ = std::make_unique<Periodic>(std::min<std::chrono::milliseconds>(interval, kForEver),
                                         std::move(call));
}

void Insight::stop_metrics() {
  require_creator_process();
  require_outside_metrics_function("stop_metrics()");
  const Lock lock(listener_lock_);
  listener_.reset();
}

void Insight::start_to_export(const std::string& place, int local_rank, std::string labels) {
  const auto text = [this, labels = std::move(labels)](bool is_open_metrics) {
    return to_prometheus(metrics(), recorder_.origin().rank, labels, is_open_metrics);
  };
  if (MetricsServer::is_address(place)) {
    server_ = std::make_unique<MetricsServer>(place, local_rank, text);
    return;
  }
  const Lock lock(file_lock_);
  file_ = std::make_unique<MetricsFile>(name_for_rank(place, recorder_.origin()),
                                        [text] { return text(false); });
}

void Insight::write_metrics() {
  const Lock lock(file_lock_);
  if (file_ != nullptr) file_->write();
}

void Insight::let_preempt() {
  std::call_once(lets_preempt_, [&] {
    preemption_.emplace({SIGTERM, SIGUSR1}, [](std::string_view) {});
    Signals::let_preempt();
  });
}

void Insight::stop() {
  stop_timeline();
  stop_metrics();
  preemption_.reset();
  questions_.reset();
  server_.reset();
  const Lock lock(file_lock_);
  if (file_ != nullptr && recorder_.problems().empty()) file_->remove();
  file_.reset();
}

}  // namespace kolo::insight
