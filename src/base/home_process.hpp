#pragma once

#include <cstdint>

namespace kolo {

/// The process in which an object was made.
///
/// A forked child has copies of all objects but none of the threads behind them, and the resources
/// still belong to the parent: its rank in MPI, its side of shared memory. A copy must leave them
/// alone, also when it is destroyed. So everything that acts on the outside world checks this
/// first, before it takes a lock: a thread that the child does not have may hold it.
class HomeProcess {
 public:
  HomeProcess();

  bool is_here() const;

 private:
  std::uint64_t forks_;
};

}  // namespace kolo
