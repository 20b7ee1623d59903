#pragma once

#include <string>
#include <vector>

#include "bench/jobs/measure.hpp"
#include "bench/options.hpp"
#include "bench/report/machine.hpp"

namespace bench {

/// All that was measured, and how.
struct Report {
  const Options& options;
  int ranks;
  /// "mpi", "nccl": in processes of its own; "mpi in the same processes", "nccl in the same
  /// processes"; or nothing
  std::string baseline;
  Machine machine;
  std::vector<Row> rows{};
  GpuDescription gpu{};
  MpiDescription mpi{};  ///< the baseline's, where MPI is one
};

/// For people: two lines above the rows, three with a GPU or MPI as the baseline, and a line a row.
std::string table_head(const Report& report);
std::string table_line(const Report& report, const Row& row);

std::string to_json(const Report& report);
std::string to_csv(const Report& report);

}  // namespace bench
