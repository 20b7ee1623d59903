#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace kolo {

/// What a rank has done since its Runtime started, in all of its process sets together.
struct Metrics {
  struct Operations {
    std::uint64_t ended = 0;
    std::uint64_t failed = 0;  ///< of these
  };
  struct Bytes {
    std::uint64_t shared_memory = 0;  ///< payload moved to or from other ranks' shared memory
    std::uint64_t messages = 0;       ///< payload sent in messages
    std::uint64_t gpus = 0;           ///< payload that GPUs sent
    std::uint64_t packed = 0;         ///< payload copied to fuse or to compress tensors
    std::uint64_t headers = 0;        ///< published or sent to agree on operations
  };
  /// Of durations, one per operation that has reached the end of them.
  struct Histogram {
    static constexpr std::size_t kBounds = 28;
    /// In seconds: powers of two of a microsecond, up to 134 s.
    static constexpr double bound(std::size_t i) {
      return static_cast<double>(std::uint64_t{1} << i) / 1e6;
    }
    /// counts[i]: durations up to bound(i) that exceed bound(i - 1); the last: those that exceed
    /// all bounds.
    std::array<std::uint64_t, kBounds + 1> counts{};
    double sum = 0.0;  ///< seconds

    std::uint64_t count() const;
  };

  double elapsed_seconds = 0.0;                  ///< since the Runtime started
  std::map<std::string, Operations> operations;  ///< by collective: "allreduce"
  Bytes bytes;
  Histogram agree;  ///< from an operation's submission until all ranks have agreed to run it
  Histogram queue;  ///< from there until its data begin to move
  Histogram move;   ///< from there to its end; on a GPU to its launch
  /// By world rank: seconds in which operations of a set waited for that rank, the last to submit
  /// them. Operations that wait at once count once.
  std::vector<double> late_seconds;
  /// By world rank: seconds in which no data of a set moved because of that rank.
  std::vector<double> data_wait_seconds;
  double unknown_data_wait_seconds = 0.0;  ///< short ones, and on ranks that are not known
  /// By world rank: how long ago the oldest operation of a process set that has not ended was
  /// submitted, if it waits for that rank now; of several sets, the longest time. 0: none does.
  std::vector<double> open_wait_seconds;
  double unknown_open_wait_seconds = 0.0;  ///< the same, for ranks that are not known
  double blocked_seconds = 0.0;            ///< in which the program's threads waited for operations
  std::uint64_t steps = 0;                 ///< of training: see enter_phase()
  double last_step_time = 0.0;             ///< when the last one ended, since the epoch; 0: none
  double exposed_seconds = 0.0;            ///< of blocked_seconds, in these steps
  std::uint64_t stalls = 0;   ///< reported after KOLO_STALL_WARN, by the first rank of a set
  std::uint64_t records = 0;  ///< written: see dump_record()
};

/// @return an object with the names of the file that KOLO_METRICS writes. Its values are numbers,
///   objects of numbers by the label's value, or histograms: `count`, `sum` in seconds, and
///   `buckets`, how many durations were at most as long as their name
std::string to_json(const Metrics& metrics);

}  // namespace kolo
#pragma GCC visibility pop
