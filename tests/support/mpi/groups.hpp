#pragma once

#include <thread>

#include <mpi.h>

namespace kolo::test {

/// Which ranks of the program run the tests together, from KOLO_TEST_GROUPS.
enum class Groups {
  One,     ///< all ranks
  AtOnce,  ///< "at_once": the even ranks and the odd ranks, two groups that run simultaneously
  InTurn,  ///< "in_turn": the odd ranks after the even ones
};
Groups groups_of_environment();

/// Stands for the rest of a program that runs Kolo in groups of ranks: makes its own MPI calls,
/// among all ranks, on its own thread. Does nothing if all ranks are one group.
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

/// If the groups take turns, the odd ranks wait here until the even ranks have finished.
class Turn {
 public:
  Turn();
  ~Turn();
  Turn(const Turn&) = delete;  // there is one turn
  Turn& operator=(const Turn&) = delete;

 private:
  int world_rank_ = 0;
};

}  // namespace kolo::test
