#pragma once

#include <cstdint>

namespace kolo {

/// The process that an object was made in.
///
/// A forked child has copies of all objects, but none of the threads behind them, and what they
/// stand for is still the parent's: its rank in MPI, its side of shared memory. A copy must leave
/// that alone when it ends with the child. So whatever acts on the world outside asks this first,
/// before it takes a lock, which a thread that is not there may hold.
class HomeProcess {
 public:
  HomeProcess();

  bool is_here() const;

 private:
  std::uint64_t forks_;
};

}  // namespace kolo
