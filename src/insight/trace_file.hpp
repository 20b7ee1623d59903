#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "insight/recorder.hpp"

namespace kolo::insight {

/// Events of one rank as a file in the JSON of Chrome's trace viewer, which Perfetto opens: an
/// array with one event a line. Readers accept a file whose end is missing. docs/insight.md
/// describes what is in it.
class TraceFile {
 public:
  /// Creates the folder, and a file that publish() gives its name: `folder/rank-<rank>.json`.
  /// `recorder`, which outlives this object, says whose events they are.
  /// @param why "timeline", "requested" or the text of an error
  /// @throws BackendError if that fails
  TraceFile(const std::string& folder, const Recorder& recorder, std::string_view why);

  void write(const Recorder::Entry& entry);
  void write(const Recorder::Problem& problem);
  /// Of these events: the operations that have begun and not ended; and the current phase.
  void write_unfinished(const std::vector<Recorder::Entry>& entries);
  /// Where the process's main thread is.
  void write_stack(const std::vector<std::string>& functions);
  /// This many events were overwritten before they could be written.
  void write_gap(std::uint64_t lost);
  /// Replaces an older file of that name by this one, with all that has been written.
  /// @throws BackendError as flush()
  void publish();
  /// Hands everything to the system.
  /// @throws BackendError if something could not be written
  void flush();
  /// Ends the array.
  /// @throws BackendError as flush()
  void close();

  const std::string& path() const { return path_; }

 private:
  /// Rows of the picture. Spans of one kind that overlap are in several.
  enum Row { kPhases, kMarks, kBuckets, kNegotiations, kQueues, kMoves, kRowKinds };
  void write_header(std::string_view why);
  int row_of(Row kind, Event::Time begin, Event::Time end);
  void begin_event(std::string_view name, std::string_view category, char type, Event::Time at,
                   int row);
  void begin_span(std::string_view name, std::string_view category, Row kind, Event::Time begin,
                  Event::Time end);
  void end_event();
  void write_operation(const Recorder::Entry& entry);
  void write_pending(const Recorder::Entry& entry, Event::Time now);
  void add_operation_args(const Event& event);
  void write_arrow(char type, std::uint64_t number, Event::Time at);

  template <class Value>
  void add_arg(std::string_view name, const Value& value);

  const Recorder& recorder_;
  std::string path_;
  std::string path_before_;  // it is published
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::string buffer_;  // not stdio's, which a forked child would write again at its end
  std::string line_;
  bool has_events_ = false;
  bool has_args_ = false;                                 // in `line_`
  std::array<std::vector<Event::Time>, kRowKinds> rows_;  // when each is free again
  int last_row_ = 0;                                      // of the last span
  std::map<std::string, std::uint64_t> arrows_;  // from buckets whose operations have not ended
  std::uint64_t arrow_count_ = 0;
};

/// Writes what `recorder` holds, with its problems and what is unfinished, to
/// `folder/rank-<rank>.json`. Any thread.
/// @return the path
/// @throws BackendError if that fails
std::string write_record(const Recorder& recorder, const std::string& folder, std::string_view why);

}  // namespace kolo::insight
