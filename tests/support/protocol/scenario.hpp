#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/protocol/coordinator.hpp"

namespace kolo::simulator {

using runtime::kNever;
using runtime::Time;

/// One call of a rank's program. Submitting a name that is still in flight on the rank first waits
/// for it.
struct Step {
  enum class Kind {
    Submit,    ///< `variant` of `name`, with a timeout of `time`
    Wait,      ///< until the last use of `name` has ended
    WaitAll,   ///< until nothing is in flight on this rank
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

/// A fault of a rank after a number of steps. Calls of its program, progress steps of its
/// coordinator and single actions within a progress step all count as steps.
struct Fault {
  enum class Kind {
    Die,             ///< its process ends
    DieWithMessage,  ///< it publishes its own loss before it ends, as after an uncaught exception
    Freeze,          ///< it does nothing more, but its process stays (SIGSTOP)
  };
  int rank = 0;
  Kind kind = Kind::Die;
  int after = 0;
};

/// Random delays, up to these bounds; one in `long_one_in` is up to `longest`.
struct Delays {
  Time call{1'000};            ///< between two calls of a program
  Time wake{20'000};           ///< from an event to the step or call that notices it
  Time transfer{20'000};       ///< until a header or message is visible to its reader
  Time data{50'000};           ///< to move the data of one batch
  Time detection{10'000'000};  ///< of a death
  Time longest{0};
  int long_one_in = 0;  ///< 0: never

  Time bound() const;  ///< of one wake-up plus one transfer
};

/// Everything a simulation depends on.
struct Scenario {
  std::uint64_t seed = 0;  ///< of the delays
  std::string title;
  int ranks = 1;
  int tree_width = 8;
  bool by_messages = false;  ///< headers travel along the tree, not through shared memory
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
  bool must_finish = false;  ///< every rank reaches the end of its program
};

/// The scenario of a seed: a program common to all ranks, made different on each by faults. The
/// grammar covers every row of the protocol's table of cases.
Scenario random_scenario(std::uint64_t seed);

}  // namespace kolo::simulator
