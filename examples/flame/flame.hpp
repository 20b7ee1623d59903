#pragma once

#include <vector>

#include <mpi.h>

namespace flame {

/// The state of one cell.
struct State {
  float temperature = 0;  ///< 0: cold, 1: burnt
  float fuel = 1;
};

/// How the reaction changes each of `states` within one time step, by many substeps: slow.
std::vector<State> react_exactly(const std::vector<State>& states);

/// A ring of cells in which fuel flows in, diffuses and burns. Each rank of a communicator has a
/// section of it. It does not use Kolo.
class Ring {
 public:
  static constexpr int kCellsPerRank = 256;

  explicit Ring(MPI_Comm solvers);

  const std::vector<State>& cells() const { return cells_; }
  /// One time step without the reaction, for which ranks exchange their outermost cells.
  /// Collective.
  void flow();
  /// Adds the changes by the reaction in one time step.
  void add(const std::vector<State>& changes);

 private:
  MPI_Comm solvers_;
  int left_ = 0;
  int right_ = 0;
  std::vector<State> cells_;
};

}  // namespace flame
