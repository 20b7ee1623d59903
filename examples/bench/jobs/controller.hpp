#pragma once

#include <string>
#include <vector>

#include "bench/jobs/job.hpp"
#include "bench/options.hpp"
#include "bench/report/report.hpp"
#include "common/output_file.hpp"

namespace bench {

inline constexpr int kSomeWrong = 1;  ///< exit status where elements were wrong

/// The files that were asked for.
class OutputFiles {
 public:
  /// Throws kolo::InvalidArgument where one of them cannot be written.
  explicit OutputFiles(const Options& options);

  void write(const Report& report);

 private:
  examples::OutputFile json_;
  examples::OutputFile csv_;
  examples::OutputFile plot_;
};

/// The whole measurement, over jobs of as many ranks each. Prints rows as they come, and writes the
/// files; says nothing where `files` is null. Returns the exit status.
int control(const Options& options, const std::string& baseline, const std::vector<Job*>& jobs,
            OutputFiles* files);

}  // namespace bench
