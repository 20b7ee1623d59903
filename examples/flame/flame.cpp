#include "flame/flame.hpp"

#include <cmath>
#include <cstddef>

namespace flame {
namespace {

constexpr float kTimeStep = 0.05F;
constexpr float kDiffusion = 2.0F;  // cells² per unit of time
constexpr float kFeed = 0.2F;       // rate at which fuel flows in and heat is lost

}  // namespace

std::vector<State> react_exactly(const std::vector<State>& states) {
  constexpr int kSubsteps = 500;
  constexpr float kActivation = 4.0F;
  std::vector<State> changes;
  for (const State& before : states) {
    State now = before;
    for (int i = 0; i < kSubsteps; ++i) {
      const float rate = 40.0F * now.fuel * std::exp(-kActivation / (0.3F + now.temperature));
      const float burnt = rate * kTimeStep / kSubsteps;
      now.fuel -= burnt;
      now.temperature += burnt;
    }
    changes.push_back({now.temperature - before.temperature, now.fuel - before.fuel});
  }
  return changes;
}

Ring::Ring(MPI_Comm solvers) : solvers_(solvers), cells_(kCellsPerRank) {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(solvers, &rank);
  MPI_Comm_size(solvers, &size);
  left_ = (rank + size - 1) % size;
  right_ = (rank + 1) % size;
  for (int i = 0; i < kCellsPerRank; ++i) {  // sparks of different heat
    const float phase = 0.1F * static_cast<float>(i + rank * kCellsPerRank);
    cells_[static_cast<std::size_t>(i)].temperature = 0.75F + 0.75F * std::sin(phase);
  }
}

void Ring::flow() {
  State before_first;
  State after_last;
  MPI_Sendrecv(&cells_.back(), 2, MPI_FLOAT, right_, 0, &before_first, 2, MPI_FLOAT, left_, 0,
               solvers_, MPI_STATUS_IGNORE);
  MPI_Sendrecv(&cells_.front(), 2, MPI_FLOAT, left_, 1, &after_last, 2, MPI_FLOAT, right_, 1,
               solvers_, MPI_STATUS_IGNORE);
  const std::vector<State> old = cells_;
  const auto diffused = [](float left, float middle, float right) {
    return middle + kDiffusion * kTimeStep * (left - 2 * middle + right);
  };
  for (std::size_t i = 0; i < old.size(); ++i) {
    const State& left = i > 0 ? old[i - 1] : before_first;
    const State& right = i + 1 < old.size() ? old[i + 1] : after_last;
    cells_[i] = {diffused(left.temperature, old[i].temperature, right.temperature),
                 diffused(left.fuel, old[i].fuel, right.fuel)};
    cells_[i].temperature -= kFeed * kTimeStep * cells_[i].temperature;
    cells_[i].fuel += kFeed * kTimeStep * (1 - cells_[i].fuel);
  }
}

void Ring::add(const std::vector<State>& changes) {
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    cells_[i].temperature += changes[i].temperature;
    cells_[i].fuel += changes[i].fuel;
  }
}

}  // namespace flame
