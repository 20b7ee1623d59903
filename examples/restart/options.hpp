#pragma once

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "common/exit.hpp"
#include "restart/hosts.hpp"

namespace restart {

/// The command line of kolo-restart.
struct Options {
  int ranks = 0;
  int min_ranks = 0;
  int max_restarts = 3;
  int host_failures = 2;
  std::vector<Host> hosts;          ///< empty: mpirun chooses them
  std::vector<std::string> mpirun;  ///< and its own options
  std::chrono::milliseconds backoff{1000};
  std::chrono::milliseconds grace{10'000};
  std::chrono::milliseconds probe_timeout{30'000};
  std::vector<std::string> program;  ///< and its arguments
};

/// The options, or how to exit after --help or an error.
std::variant<Options, examples::Exit> parse_options(int argc, const char* const* argv);

}  // namespace restart
