#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "insight/periodic.hpp"
#include "insight/recorder.hpp"
#include "insight/trace_file.hpp"

namespace kolo::insight {

/// Writes all events that a recorder gets from now on to a file, in a thread of its own, until
/// it is destroyed. A file that cannot be written any more ends the timeline with a warning, and
/// nothing else.
class Timeline {
 public:
  /// `recorder` outlives it.
  /// @throws BackendError if the file cannot be created
  Timeline(const Recorder& recorder, const std::string& folder);

 private:
  bool write(bool is_last);
  void write_new(bool is_last);

  const Recorder& recorder_;
  TraceFile file_;
  std::uint64_t next_;
  std::optional<Periodic> writer_;  // the last member: uses the others
};

}  // namespace kolo::insight
