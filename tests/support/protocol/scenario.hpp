#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/protocol/coordinator.hpp"

namespace kolo::simulator {

using runtime::kNever;
using runtime::Time;

/// One call of a rank's program. A name that is still in flight here is waited for before it is
/// submitted again.
struct Step {
  enum class Kind {
    Submit,    ///< `variant` of `name`, with a timeout of `time`
    Wait,      ///< until the last use of `name` has ended
    WaitAll,   ///< until nothing is in flight here
    Compute,   ///< for `time`
    Join,      ///< blocks until all ranks have joined
    ShutDown,  ///< the program ends here
    Settled,   ///< from here on: no wake-up request, negotiation or fruitless exchange
  };
  Kind kind = Kind::Submit;
  int name = 0;
  int variant = 0;
  Time time = kNever;
};
using Program = std::vector<Step>;

/// What happens to a rank after a number of steps: calls of its program, progress steps of its
/// coordinator and single actions within a progress step all count.
struct Fault {
  enum class Kind {
    Die,             ///< its process ends
    DieWithMessage,  ///< it publishes its own loss first, as after an uncaught exception
    Freeze,          ///< it never does anything again, but its process stays (SIGSTOP)
  };
  int rank = 0;
  Kind kind = Kind::Die;
  int after = 0;
};

/// How long things take: random, up to these bounds; one in `long_one_in` up to `longest`.
struct Delays {
  Time call{1'000};            ///< from one call of a program to the next
  Time wake{20'000};           ///< from an event to the step or call that sees it
  Time transfer{20'000};       ///< until a header or message is visible to its reader
  Time data{50'000};           ///< moving the data of one batch
  Time detection{10'000'000};  ///< of a death
  Time longest{0};
  int long_one_in = 0;  ///< 0: never

  Time bound() const;  ///< of one wake-up and one transfer
};

/// Everything a simulation depends on.
struct Scenario {
  std::uint64_t seed = 0;  ///< of the delays
  std::string title;
  int ranks = 1;
  int tree_width = 8;
  bool by_messages = false;  ///< headers travel up and down the tree instead of lying in memory
  Time patience{5'000'000};
  Time stall_warn = kNever;
  Time lost_after{1'000'000'000};
  std::size_t table_capacity = 2048;
  std::size_t table_bits = runtime::Header::kMaxBits;
  std::size_t fusion_bytes = 0;
  Delays delays;
  std::vector<int> world_ranks;                      ///< of the members, ascending
  std::vector<std::vector<runtime::Request>> names;  ///< variants of each
  std::vector<Program> programs;                     ///< of each rank
  std::vector<Fault> faults;
  bool must_finish = false;  ///< every rank comes to the end of its program
};

}  // namespace kolo::simulator
