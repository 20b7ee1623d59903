#pragma once

#include <string>
#include <vector>

#include "restart/plan.hpp"

namespace restart {

/// Builds the command lines of mpirun.
class Launcher {
 public:
  /// @param mpirun the program and its own options
  /// @param program the job's program and its arguments
  Launcher(std::vector<std::string> mpirun, std::vector<std::string> program, bool is_open_mpi);

  std::vector<std::string> command(const Attempt& attempt) const;
  /// The command that starts one process on `host`, which ends immediately.
  std::vector<std::string> probe(const Host& host) const;

 private:
  std::vector<std::string> start_of(const Attempt& attempt) const;

  std::vector<std::string> mpirun_;
  std::vector<std::string> program_;
  bool is_open_mpi_;
};

/// Why `name`, a path or a name in PATH, cannot be run; empty if it can.
std::string problem_with_program(const std::string& name);

}  // namespace restart
