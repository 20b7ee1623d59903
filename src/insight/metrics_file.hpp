#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "insight/periodic.hpp"
#include "insight/recorder.hpp"
#include "kolo/metrics.hpp"

namespace kolo::insight {

/// The metrics of a rank in Prometheus' text format. docs/insight.md lists the names.
std::string to_prometheus(const Metrics& metrics, int rank);

/// The name of a rank's file: "{rank}" in `name` is replaced by the rank; without it, ".<rank>" is
/// appended if there are several ranks.
std::string name_for_rank(std::string_view name, const Origin& origin);

/// A file that a thread replaces by a new text, at once for readers, until this is destroyed: then
/// once more. If it cannot be written, a warning says so once, and the thread tries again.
class MetricsFile {
 public:
  /// Writes the first text soon.
  /// @param text called by that thread; lives as long as this object
  MetricsFile(std::string path, std::function<std::string()> text,
              std::chrono::milliseconds interval = std::chrono::seconds(10));

 private:
  void write();

  const std::string path_;
  const std::function<std::string()> text_;
  bool has_warned_ = false;
  Periodic writer_;  // the last member: uses the others
};

}  // namespace kolo::insight
