#pragma once

#include <chrono>
#include <memory>
#include <ostream>
#include <string>

#include "kolo/runtime.hpp"
#include "programs/program.hpp"

namespace kolo::programs {

struct RunOptions {
  std::chrono::seconds limit{120};  ///< a program that takes longer counts as hanging
  std::ostream* trace = nullptr;
  std::string replay;  ///< the command that repeats the program, for reports
};

/// How every rank starts its Runtime.
InitOptions init_options(const Program& program, std::shared_ptr<comm::World> world);

/// Runs `program` with its ranks as threads. Returns an error text, or an empty one on success. A
/// hang ends the process, with a report.
std::string run_in_threads(const Program& program, const RunOptions& options);

}  // namespace kolo::programs
