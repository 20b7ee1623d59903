#pragma once

#include <condition_variable>
#include <cstdint>
#include <string>
#include <thread>

#include "base/mutex.hpp"
#include "insight/recorder.hpp"
#include "insight/trace_file.hpp"

namespace kolo::insight {

/// Writes all events that a recorder gets from now on to a file, in a thread of its own. A file
/// that cannot be written any more ends the timeline with a warning, and nothing else.
class Timeline {
 public:
  /// `recorder` outlives it.
  /// @throws BackendError if the file cannot be created
  Timeline(const Recorder& recorder, const std::string& folder);
  /// Writes the events so far, and ends the file.
  ~Timeline();
  Timeline(const Timeline&) = delete;  // its thread refers to it
  Timeline& operator=(const Timeline&) = delete;

 private:
  void loop();
  void write_new(bool is_last);

  const Recorder& recorder_;
  TraceFile file_;
  std::uint64_t next_;
  Mutex lock_;
  std::condition_variable_any stopped_;
  bool is_stopping_ KOLO_GUARDED_BY(lock_) = false;
  std::thread thread_;  // the last member: uses the others
};

}  // namespace kolo::insight
