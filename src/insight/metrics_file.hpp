#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/mutex.hpp"
#include "insight/periodic.hpp"
#include "insight/recorder.hpp"
#include "kolo/metrics.hpp"

namespace kolo::insight {

/// The labels of a job, as `,job_id="812",team="vision"`: the scheduler's number of it, or `job`,
/// unless `own` has one, and `own`, which Config has checked: "team=vision,run=42".
std::string labels_of(std::uint64_t job, std::string_view own);

/// The metrics of a rank in Prometheus' text format, or in OpenMetrics'. docs/insight.md lists the
/// names.
std::string to_prometheus(const Metrics& metrics, int rank, std::string_view labels = {},
                          bool is_open_metrics = false);

/// The name of a rank's file: "{rank}" in `name` is replaced by the rank; without it, ".<rank>" is
/// appended if there are several ranks.
std::string name_for_rank(std::string_view name, const Origin& origin);

/// A file that a thread replaces by a new text, at once for readers, until this is destroyed: then
/// once more. If it cannot be written, a warning says so once, and the thread tries again.
class MetricsFile {
 public:
  /// Writes the first text soon.
  /// @param text called by that thread and in write(); lives as long as this object
  MetricsFile(std::string path, std::function<std::string()> text,
              std::chrono::milliseconds interval = std::chrono::seconds(10));

  /// Writes now. Any thread.
  void write();
  /// From now on there is no file.
  void remove();

 private:
  const std::string path_;
  const std::function<std::string()> text_;
  Mutex lock_;
  bool is_removed_ KOLO_GUARDED_BY(lock_) = false;
  bool has_warned_ KOLO_GUARDED_BY(lock_) = false;
  Periodic writer_;  // the last member: uses the others
};

}  // namespace kolo::insight
