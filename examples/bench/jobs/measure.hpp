#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bench/jobs/job.hpp"
#include "common/statistics.hpp"

namespace bench {

/// How a case's blocks compare with the baseline's of the same rounds; below 1 is faster.
struct Ratio {
  double median;
  examples::Interval interval;  ///< of the median, 95 %
};

/// What one case did with one workload.
struct Row {
  std::size_t bytes;
  std::size_t count;  ///< elements in `bytes`
  Label label;
  double min_us;     ///< of blocks, per call
  double median_us;  ///< of blocks, per call
  double p99_us;     ///< of calls, or of blocks where these alone are timed
  double host_us;    ///< median of blocks, per call, until it returned
  double algbw_gbps;
  double busbw_gbps;
  std::uint64_t wrong;
  double cpu_s;                                       ///< of all ranks, in all blocks
  int calls;                                          ///< measured
  std::vector<std::pair<std::string, Ratio>> ratios;  ///< by Label::reference, the main one first
};

/// How often.
struct Repetition {
  int warmup = 2;  ///< rounds that do not count
  int rounds = 15;
  int iterations = 1;  ///< calls in a block
};

/// Measures all cases of all jobs: in each round one block of each, in an order of its own,
/// so that none always follows the same.
std::vector<Row> measure(const std::vector<Job*>& jobs, const Workload& workload,
                         const Repetition& repetition);

}  // namespace bench
