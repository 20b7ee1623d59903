#pragma once

#include <cstdint>

namespace kolo {

/// Remembers the process that created an object.
///
/// A forked child has copies of all objects but none of their threads, and the resources still
/// belong to the parent: its rank in MPI, its side of shared memory. A copy must not touch them,
/// not even in its destructor. Code with effects outside the process therefore checks this first,
/// before it takes a lock: a thread that does not exist in the child may hold it.
class CreatorProcess {
 public:
  CreatorProcess();

  /// False in a forked child.
  bool is_current() const;

 private:
  std::uint64_t forks_;
};

}  // namespace kolo
