#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace restart {

/// What mpirun says about the end of a job.
struct Cause {
  std::string text;  ///< "rank 1 on node b ended by signal 9 (Killed)"
  std::string node;  ///< where it happened; empty: not said
  /// Whether the machine rather than the program may be to blame: the node does not answer or
  /// cannot start the program, or a rank there ended by SIGKILL or SIGBUS.
  bool may_be_node = false;
};

/// Reads what Open MPI's mpirun writes to its standard error, and notes the first cause that it
/// gives: what fails afterwards fails because of it.
class CauseFinder {
 public:
  void add(std::string_view bytes);
  const std::optional<Cause>& cause() const { return cause_; }
  /// Whether mpirun has given the job up.
  bool is_aborted() const { return is_aborted_ || cause_; }

 private:
  void end_line();

  std::string previous_;
  std::string line_;
  std::optional<Cause> cause_;
  bool is_aborted_ = false;
};

}  // namespace restart
