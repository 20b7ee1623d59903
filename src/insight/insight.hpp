#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/creator_process.hpp"
#include "base/mutex.hpp"
#include "base/signals.hpp"
#include "insight/meter.hpp"
#include "insight/metrics_file.hpp"
#include "insight/periodic.hpp"
#include "insight/recorder.hpp"
#include "insight/timeline.hpp"
#include "kolo/metrics.hpp"

namespace kolo::insight {

class MetricsServer;

/// What a Runtime knows about its own run: the last events, records of them at errors and on
/// request, a timeline, and counts. Any thread.
class Insight {
 public:
  /// @param records the folder for records that the program does not ask for; empty: none are
  ///   written, and SIGUSR2 and SIGTERM stay as they are
  Insight(Origin origin, std::string records);
  ~Insight();

  Recorder& recorder() { return recorder_; }
  /// Throws InvalidArgument in a forked child. It would write to its parent's files, and wait for
  /// threads that it does not have.
  void require_creator_process() const;

  /// Logs why operations of this rank end, and which records explain it; true if this is news.
  /// `ending`: the part of `text` that says why. It is not news if the text that was logged before
  /// says the same, or was the last of all.
  bool report(const std::string& text, const std::string& ending, bool is_last = false);
  /// An operation has failed, or a rank was lost. Writes a record and the metrics at the first,
  /// then at most once in kRecordPause, and if `is_last`, when the process is about to end. Never
  /// throws.
  void note(Recorder::Problem problem, bool is_last = false) noexcept;
  /// @return the path of the file
  /// @throws InvalidArgument if a timeline is being written in that folder, and in a forked child
  /// @throws BackendError if it cannot be written
  std::string write_record(const std::string& folder, std::string_view why);

  /// Replaces a timeline that is being written.
  /// @throws BackendError if the file cannot be created
  void start_timeline(const std::string& folder);
  void stop_timeline();

  /// For one engine, until it gives it back; what it has counted stays.
  Meter& take_meter();
  void give_back(Meter& meter);
  Metrics metrics() const;
  /// @throws InvalidArgument as kolo::start_metrics() and kolo::stop_metrics() do
  void start_metrics(std::chrono::milliseconds interval, std::function<void(const Metrics&)>);
  void stop_metrics();
  /// Throws InvalidArgument, naming the call, in the function of start_metrics().
  static void require_outside_metrics_function(std::string_view call);
  /// @param place the value of KOLO_METRICS
  /// @param local_rank of this rank in its node
  void start_to_export(const std::string& place, int local_rank, std::string labels);
  /// See Signals::let_preempt(), from now on until stop().
  void let_preempt();
  /// The Runtime ends: stop_timeline(), stop_metrics(), and the metrics file is written once more
  /// after an error, else removed: it would say for ever what is over.
  void stop();

 private:
  static constexpr std::chrono::seconds kRecordPause{10};

  void try_to_record(std::string_view why, bool says_where) noexcept;
  std::string command() const;
  void write_metrics();

  const CreatorProcess creator_;
  const Clock::time_point started_ = Clock::now();
  Recorder recorder_;
  const std::string records_;
  Mutex record_lock_;  // one thread at a time writes the file
  Clock::time_point next_record_ KOLO_GUARDED_BY(record_lock_){};
  std::atomic<bool> has_said_where_{false};  // the records of errors are
  Mutex report_lock_;
  std::string reported_ KOLO_GUARDED_BY(report_lock_);  // the last text
  std::string reported_ending_ KOLO_GUARDED_BY(report_lock_);
  bool has_reported_last_ KOLO_GUARDED_BY(report_lock_) = false;
  Mutex timeline_lock_;
  std::unique_ptr<Timeline> timeline_ KOLO_GUARDED_BY(timeline_lock_);
  std::string timeline_folder_ KOLO_GUARDED_BY(timeline_lock_);
  std::atomic<std::uint64_t> records_written_{0};
  mutable Mutex meters_lock_;
  std::deque<Meter> meters_ KOLO_GUARDED_BY(meters_lock_);
  std::vector<Meter*> free_meters_ KOLO_GUARDED_BY(meters_lock_);
  std::once_flag lets_preempt_;
  Mutex file_lock_;
  Mutex listener_lock_;
  // The last members: use the others.
  std::unique_ptr<MetricsFile> file_ KOLO_GUARDED_BY(file_lock_);
  std::unique_ptr<Periodic> listener_ KOLO_GUARDED_BY(listener_lock_);  // of metrics
  std::unique_ptr<MetricsServer> server_;  // set at the start and the end
  std::optional<Signals> questions_;       // the same
  std::optional<Signals> preemption_;      // set at the first let_preempt(), and the end
};

}  // namespace kolo::insight
