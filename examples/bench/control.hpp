#pragma once

#include <string>
#include <vector>

#include "bench/jobs.hpp"
#include "bench/options.hpp"
#include "bench/rank.hpp"
#include "bench/report.hpp"
#include "common/output_file.hpp"

namespace bench {

inline constexpr int kSomeWrong = 1;  ///< exit status if elements were wrong

/// The output files that the options name.
class OutputFiles {
 public:
  /// Throws kolo::InvalidArgument if one of them cannot be written.
  explicit OutputFiles(const Options& options);

  void write(const Report& report);

 private:
  examples::OutputFile json_;
  examples::OutputFile csv_;
  examples::OutputFile plot_;
};

/// Runs the whole measurement on jobs with equally many ranks. Prints rows as they are measured,
/// and writes the files; prints and writes nothing if `files` is null. Returns the exit status.
int control(const Options& options, const std::string& baseline, const std::vector<Job*>& jobs,
            OutputFiles* files);

/// The environment variable of ranks that measure only NCCL: the name of their reference.
inline constexpr const char* kNcclVariable = "KOLO_BENCH_NCCL";

/// Replaces this process by an mpirun that starts this program on `ranks` ranks. Throws
/// kolo::InvalidArgument if it cannot.
[[noreturn]] void start_ranks(int ranks, char** argv);

/// Starts Kolo's ranks with this program's command line, and the baseline's ranks if there is one,
/// and measures. Returns the exit status.
int drive(const Options& options, int argc, char** argv);

}  // namespace bench
