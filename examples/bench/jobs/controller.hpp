#pragma once

#include <string>
#include <vector>

#include "bench/jobs/job.hpp"
#include "bench/options.hpp"
#include "bench/report/output_file.hpp"
#include "bench/report/report.hpp"

namespace bench {

inline constexpr int kSomeWrong = 1;  ///< exit status where elements were wrong

/// The files that were asked for.
class OutputFiles {
 public:
  /// Throws kolo::InvalidArgument where one of them cannot be written.
  explicit OutputFiles(const Options& options)
      : json_(options.json), csv_(options.csv), plot_(options.plot) {}

  void write(const Report& report);

 private:
  OutputFile json_;
  OutputFile csv_;
  OutputFile plot_;
};

/// The whole measurement, over jobs of as many ranks each. Prints rows as they come, and writes the
/// files; says nothing where `files` is null. Returns the exit status.
int control(const Options& options, const std::string& baseline, const std::vector<Job*>& jobs,
            OutputFiles* files);

}  // namespace bench
