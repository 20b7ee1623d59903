#pragma once

#include <thread>

#include <mpi.h>

namespace kolo::test {

/// Which ranks of the program run the tests together: KOLO_TEST_GROUPS.
enum class Groups {
  One,     ///< all
  AtOnce,  ///< "at_once": the even ones and the odd ones, each group for itself
  InTurn,  ///< "in_turn": the odd ones after the even ones
};
Groups groups_of_environment();

/// What the rest of a program whose ranks are in groups does meanwhile: it makes MPI calls of its
/// own, among all ranks, on a thread of its own. Nothing where the ranks are one group.
class ProgramTraffic {
 public:
  ProgramTraffic();
  /// Waits for all ranks.
  ~ProgramTraffic();
  ProgramTraffic(const ProgramTraffic&) = delete;  // its thread refers to it
  ProgramTraffic& operator=(const ProgramTraffic&) = delete;

 private:
  MPI_Comm everybody_ = MPI_COMM_NULL;
  std::jthread thread_;
};

/// Where the groups take turns, the odd ranks wait here until the even ones have come to the end.
class Turn {
 public:
  Turn();
  ~Turn();
  Turn(const Turn&) = delete;  // one turn
  Turn& operator=(const Turn&) = delete;

 private:
  int world_rank_ = 0;
};

}  // namespace kolo::test
