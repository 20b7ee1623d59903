#pragma once

#include <string>
#include <vector>

#include "bench/machine.hpp"
#include "bench/measure.hpp"
#include "bench/options.hpp"

namespace bench {

/// The results of a measurement, and how they were obtained.
struct Report {
  const Options& options;
  int ranks;
  /// "mpi", "nccl": in separate processes; "mpi in the same processes", "nccl in the same
  /// processes"; or empty
  std::string baseline;
  Machine machine;
  std::vector<Row> rows{};
  GpuDescription gpu{};
  MpiDescription mpi{};  ///< the baseline's, if that is MPI
};

/// For people: two header lines, three on a GPU or with MPI as the baseline, and one line per row.
std::string table_head(const Report& report);
std::string table_line(const Report& report, const Row& row);

std::string to_json(const Report& report);
std::string to_csv(const Report& report);

/// An SVG plot of median time over bytes, both on logarithmic scales, with one line per case.
std::string to_svg(const Report& report);

}  // namespace bench
