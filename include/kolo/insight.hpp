#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kolo/metrics.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// What ranks did, in files that kolo-trace, Perfetto and chrome://tracing read. docs/insight.md
/// describes them. All functions are for Runtime::current(), none is collective, and any thread may
/// call them. They throw InvalidArgument where there is no Runtime, and in a forked child.

/// Writes what this rank did last, some thousand events, and what has not ended.
///
/// @param folder created if need be; the file in it is `rank-<rank>.json`
/// @return the path of the file
/// @throws InvalidArgument if a timeline is being written in that folder
/// @throws BackendError if it cannot be written
std::string dump_record(const std::string& folder);

/// Writes everything from now on, in a thread of its own, until stop_timeline() or the end of the
/// Runtime. Ends a timeline in progress first. KOLO_TIMELINE does the same from the start. If the
/// disk is too slow, events are left out, and the file says how many.
///
/// @param folder as for dump_record(); choose another one
/// @throws BackendError if the file cannot be created
void start_timeline(const std::string& folder);
/// Ends the file. Does nothing if there is no timeline.
void stop_timeline();

/// Adds a moment of the program to records and timelines.
///
/// @param name its last 80 bytes are kept
void mark(std::string_view name);

/// Adds a span, from construction to destruction. Does nothing where there is no Runtime.
///
///     {
///       const kolo::MarkedSpan span("load batch");
///       …
///     }
class MarkedSpan {
 public:
  explicit MarkedSpan(std::string name);
  MarkedSpan(const MarkedSpan&) = delete;  // it ends once
  MarkedSpan& operator=(const MarkedSpan&) = delete;
  ~MarkedSpan();

 private:
  std::string name_;
  std::int64_t begin_;
};

/// What a program that trains does. DistributedOptimizer says so itself.
enum class TrainingPhase : std::uint8_t {
  Forward,   ///< and all else between two steps. Entering it ends a step
  Backward,  ///< from the first gradient on
  Step,      ///< from the end of backward() on
};
/// For records, timelines and metrics of training whose steps Kolo does not see: the c10d backend
/// enters Backward and Step, and with kolo.distributed Forward, where an optimizer of torch.optim
/// ends its step(); other programs enter Forward at the end of each step. Nothing happens if the
/// program is in that phase, or there is no Runtime.
void enter_phase(TrainingPhase phase);

/// What this rank has counted so far. Takes no lock that an operation holds, so that it may be
/// called at any time, also in a function that runs inside an operation. KOLO_METRICS writes the
/// same to a file every 10 s.
Metrics metrics();

/// Calls `function` with metrics() soon, then after each interval, and once more at the end: until
/// stop_metrics() or the end of the Runtime. Replaces the function of an earlier call.
///
/// @param function runs in a thread of its own, one call at a time, and should return soon, since
///   the end waits for it. It must not run operations. What it refers to must live until the end.
///   The first exception that it throws becomes a warning, and it is called again
/// @throws InvalidArgument if there is no function, or the interval is not positive; in `function`
/// @throws std::system_error if there is no thread for it
void start_metrics(std::chrono::milliseconds interval,
                   std::function<void(const Metrics&)> function);
/// Returns after the last call. Does nothing if there is no function.
/// @throws InvalidArgument in the function
void stop_metrics();

}  // namespace kolo
#pragma GCC visibility pop
