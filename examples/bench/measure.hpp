#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bench/jobs.hpp"
#include "bench/rank.hpp"
#include "common/statistics.hpp"

namespace bench {

/// The times of a case's blocks divided by the baseline's in the same rounds; below 1 is faster.
struct Ratio {
  double median;
  examples::Interval interval;  ///< 95 % confidence interval of the median
};

/// The results of one case on one workload.
struct Row {
  std::size_t bytes;
  std::size_t count;  ///< elements in `bytes`
  Label label;
  double min_us;     ///< of blocks, per call
  double median_us;  ///< of blocks, per call
  double p99_us;     ///< of calls, or of blocks if only these are timed
  double host_us;    ///< median of blocks, per call, until it returns
  double algbw_gbps;
  double busbw_gbps;
  std::uint64_t wrong;
  double cpu_s;                                       ///< of all ranks, in all blocks
  int calls;                                          ///< measured
  std::vector<std::pair<std::string, Ratio>> ratios;  ///< by Label::reference, the main one first
};

/// How often a case runs.
struct Repetition {
  int warmup = 2;  ///< rounds that do not count
  int rounds = 15;
  int iterations = 1;  ///< calls in a block
};

/// Measures all cases of all jobs: one block of each per round, in a different random order each
/// time, so that no case always follows the same one.
std::vector<Row> measure(const std::vector<Job*>& jobs, const Workload& workload,
                         const Repetition& repetition);

}  // namespace bench
