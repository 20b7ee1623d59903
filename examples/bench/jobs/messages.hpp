#pragma once

#include <nlohmann/json.hpp>

#include "bench/jobs/job.hpp"
#include "bench/workload/workload.hpp"

/// The messages between the controller and the ranks.
///
///   rank: {"rank": r, "ranks": n, "pid": p, "gpu": {…}, "mpi": {…}}, once it is ready
///   {"do": "prepare", "workload": …}                      → {"labels": […]}
///   {"do": "run", "case": c, "iterations": k}             → {"calls_us": […], …}
///   {"do": "check", "case": c}                            → {"wrong": w}
///   {"do": "end"}                                         → the rank ends
///
/// In place of any answer: {"error": text, "is_usage": whether the command line caused it}, and the
/// rank ends.
namespace bench {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Workload, operation, dtype, counts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Block, calls_us, mean_us, cpu_s, host_us)

}  // namespace bench
