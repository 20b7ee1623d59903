#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "base/mutex.hpp"
#include "insight/recorder.hpp"
#include "kolo/metrics.hpp"

namespace kolo::insight {

/// The metrics of a rank in Prometheus' text format. docs/insight.md lists the names.
std::string to_prometheus(const Metrics& metrics, int rank);

/// The name of a rank's file: "{rank}" in `name` is replaced by the rank; without it, ".<rank>" is
/// appended if there are several ranks.
std::string name_for_rank(std::string_view name, const Origin& origin);

/// A file that a thread replaces by a new text, at once for readers. If it cannot be written, a
/// warning says so once, and the thread tries again.
class MetricsFile {
 public:
  /// Writes the first text soon.
  /// @param text called by that thread; lives as long as this object
  MetricsFile(std::string path, std::function<std::string()> text,
              std::chrono::milliseconds interval = std::chrono::seconds(10));
  /// Writes the last text.
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;  // its thread refers to it
  MetricsFile& operator=(const MetricsFile&) = delete;

 private:
  void loop();
  void write();

  const std::string path_;
  const std::function<std::string()> text_;
  const std::chrono::milliseconds interval_;
  bool has_warned_ = false;
  Mutex lock_;
  std::condition_variable_any stopped_;
  bool is_stopping_ KOLO_GUARDED_BY(lock_) = false;
  std::thread thread_;  // the last member: uses the others
};

}  // namespace kolo::insight
