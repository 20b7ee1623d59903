// Training inside an existing MPI program: some ranks simulate a flame, the others learn its
// reaction, which takes most of the time, and send the network to the simulation. Only the ranks
// that train have a Runtime, on their own communicator. The program initializes MPI so that
// Kolo's threads may call it, too.
//
//   mpirun -np 4 09_inside_a_simulation
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <ATen/Functions.h>
#include <mpi.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/adamw.h>

#include "flame/flame.hpp"
#include "kolo/kolo.hpp"
#include "kolo/mpi.hpp"

namespace {

constexpr int kRounds = 32;
constexpr int kStepsPerRound = 20;
constexpr double kUnit = 0.02;  // of the network's output: the changes of a time step are small

/// The two groups of the program's ranks.
struct Split {
  int world_rank = 0;
  int solvers = 0;  ///< world ranks 0 … solvers-1; the others train
  int trainers = 0;
  MPI_Comm own = MPI_COMM_NULL;  ///< this rank's group

  bool trains() const { return world_rank >= solvers; }
};

Split split_world() {
  Split split;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &split.world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  split.trainers = size / 2;
  split.solvers = size - split.trainers;
  MPI_Comm_split(MPI_COMM_WORLD, split.trains() ? 1 : 0, split.world_rank, &split.own);
  return split;
}

torch::nn::Sequential make_network() {
  torch::manual_seed(1);  // the solvers' network differs only in its weights, which they receive
  return torch::nn::Sequential(torch::nn::Linear(2, 48), torch::nn::Tanh(),
                               torch::nn::Linear(48, 48), torch::nn::Tanh(),
                               torch::nn::Linear(48, 2));
}

/// Views the cells: [cells, 2].
at::Tensor as_tensor(const std::vector<flame::State>& states) {
  return at::from_blob(const_cast<flame::State*>(states.data()),
                       {static_cast<std::int64_t>(states.size()), 2}, at::kFloat);
}

std::vector<flame::State> react_by(torch::nn::Sequential& network,
                                   const std::vector<flame::State>& states) {
  const at::NoGradGuard no_grad;
  const at::Tensor output = (network->forward(as_tensor(states)) * kUnit).contiguous();
  const auto* const changes = reinterpret_cast<const flame::State*>(output.data_ptr<float>());
  return {changes, changes + states.size()};
}

/// Copies the weights of the first trainer to all ranks of the program.
void broadcast_weights(torch::nn::Sequential& network, const Split& split) {
  const at::NoGradGuard no_grad;
  at::Tensor weights = torch::nn::utils::parameters_to_vector(network->parameters());
  MPI_Bcast(weights.data_ptr<float>(), static_cast<int>(weights.numel()), MPI_FLOAT, split.solvers,
            MPI_COMM_WORLD);
  if (!split.trains()) torch::nn::utils::vector_to_parameters(weights, network->parameters());
}

double relative_error(const std::vector<flame::State>& found,
                      const std::vector<flame::State>& expected) {
  const at::Tensor difference = as_tensor(found) - as_tensor(expected);
  return (difference.norm() / as_tensor(expected).norm()).item<double>();
}

/// The maximum over all solvers.
double largest(double value, const Split& split) {
  double result = 0;
  MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_MAX, split.own);
  return result;
}

using Samples = std::array<std::vector<flame::State>, 2>;  // states, and how they change

void solve(const Split& split) {
  torch::nn::Sequential network = make_network();
  flame::Ring ring(split.own);
  Samples samples;
  for (int round = 0; round < kRounds; ++round) {
    for (int step = 0; step < kStepsPerRound; ++step) {
      ring.flow();
      samples = {ring.cells(), flame::react_exactly(ring.cells())};
      ring.add(samples[1]);
      // Sends each step's cells to another trainer.
      const int trainer = split.solvers + step % split.trainers;
      for (const auto& part : samples) {
        MPI_Send(part.data(), 2 * flame::Ring::kCellsPerRank, MPI_FLOAT, trainer, step,
                 MPI_COMM_WORLD);
      }
    }
    broadcast_weights(network, split);
    const double error = largest(relative_error(react_by(network, samples[0]), samples[1]), split);
    if (split.world_rank == 0 && round % 8 == 7) {
      std::printf("round %2d: the network's reaction is off by %.1f %%\n", round + 1, 100 * error);
    }
  }
  flame::Ring exact = ring;
  for (int step = 0; step < 2 * kStepsPerRound; ++step) {
    ring.flow();
    ring.add(react_by(network, ring.cells()));
    exact.flow();
    exact.add(flame::react_exactly(exact.cells()));
  }
  const double error = largest(relative_error(ring.cells(), exact.cells()), split);
  if (split.world_rank == 0) {
    std::printf("%d steps with the network: the flame is off by %.2f %%\n", 2 * kStepsPerRound,
                100 * error);
  }
}

/// The solvers' samples of steps `first`, `first` + stride, … of a round: states and changes.
std::array<at::Tensor, 2> receive_samples(const Split& split) {
  std::array<std::vector<at::Tensor>, 2> parts;
  const int first = split.world_rank - split.solvers;
  for (int step = first; step < kStepsPerRound; step += split.trainers) {
    for (int solver = 0; solver < split.solvers; ++solver) {
      for (auto& part : parts) {
        part.push_back(at::empty({flame::Ring::kCellsPerRank, 2}));
        MPI_Recv(part.back().data_ptr<float>(), 2 * flame::Ring::kCellsPerRank, MPI_FLOAT, solver,
                 step, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      }
    }
  }
  return {at::cat(parts[0]), at::cat(parts[1])};
}

void train(const Split& split) {
  kolo::Runtime runtime({.communicator = kolo::mpi_handle(split.own)});
  torch::nn::Sequential network = make_network();
  torch::optim::AdamW adamw(network->parameters(), 3e-3);
  kolo::DistributedOptimizer optimizer(adamw, *network);
  std::array<at::Tensor, 2> all{at::empty({0, 2}), at::empty({0, 2})};
  for (int round = 0; round < kRounds; ++round) {
    const std::array<at::Tensor, 2> samples = receive_samples(split);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = at::cat({all[i], samples[i]});
    adamw.param_groups()[0].options().set_lr(3e-3 * (kRounds - round) / kRounds);
    for (int step = 0; step < 40; ++step) {
      const at::Tensor picked = at::randint(all[0].size(0), {512}, at::kLong);
      optimizer.zero_grad();
      const at::Tensor loss = torch::nn::functional::mse_loss(
          network->forward(all[0].index_select(0, picked)), all[1].index_select(0, picked) / kUnit);
      loss.backward();
      optimizer.step();
    }
    broadcast_weights(network, split);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  const Split split = split_world();
  const bool can_run = split.trainers > 0 && split.trainers <= kStepsPerRound;
  if (!can_run) {
    std::fprintf(
        stderr,
        "this program needs 2 to %d ranks, as in mpirun -np 2: some simulate, others train\n",
        2 * kStepsPerRound + 1);
  } else if (split.trains()) {
    train(split);
  } else {
    solve(split);
  }
  MPI_Finalize();
  return can_run ? 0 : 1;
}
