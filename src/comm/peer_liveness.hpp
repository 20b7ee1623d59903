#pragma once

#include <cstdint>
#include <poll.h>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "comm/file_descriptor.hpp"

namespace kolo::comm {

/// Identifies the PID namespace, which containers on one machine may not share; 0 if unknown.
std::uint64_t pid_namespace();

/// Watches processes of this machine with pidfds, which report their end for any cause and never
/// confuse a process with a later one of the same number. Linux before 5.3 lacks pidfds, and some
/// containers refuse them (EPERM): it then compares start times in /proc.
class PeerLiveness {
 public:
  struct Peer {
    int rank;
    int pid;
  };

  /// A peer that has already ended counts as dead. Throws BackendError if a process can be
  /// watched neither way.
  explicit PeerLiveness(const std::vector<Peer>& peers);

  /// The ranks whose processes have ended so far. Any thread.
  std::vector<int> dead();

 private:
  /// A process that has no pidfd.
  struct Unopened {
    Peer peer;
    std::string started;  // as /proc has it
  };

  Mutex lock_;
  std::vector<FileDescriptor> owners_;
  std::vector<int> ranks_ KOLO_GUARDED_BY(lock_);          // of the entries of polled_
  std::vector<pollfd> polled_ KOLO_GUARDED_BY(lock_);      // of live peers
  std::vector<Unopened> unopened_ KOLO_GUARDED_BY(lock_);  // live peers
  std::vector<int> dead_ KOLO_GUARDED_BY(lock_);
};

}  // namespace kolo::comm
