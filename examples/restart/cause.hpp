#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace restart {

/// The cause of a job's end, as mpirun reports it.
struct Cause {
  std::string text;  ///< "rank 1 on node b ended by signal 9 (Killed)"
  std::string node;  ///< where it happened; empty: unknown
  /// Whether the machine rather than the program may be to blame: the node does not answer or
  /// cannot start the program, or a rank there ended by SIGKILL or SIGBUS.
  bool may_be_node_failure = false;
};

/// Parses the standard error of Open MPI's mpirun for the first cause that it gives: later failures
/// are consequences of it.
class CauseFinder {
 public:
  void add(std::string_view bytes);
  const std::optional<Cause>& cause() const { return cause_; }
  /// Whether mpirun has given up the job.
  bool is_aborted() const { return is_aborted_ || cause_; }

 private:
  void end_line();

  std::string previous_;
  std::string line_;
  std::optional<Cause> cause_;
  bool is_aborted_ = false;
};

}  // namespace restart
