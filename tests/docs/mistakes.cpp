// Makes one of the mistakes that docs/troubleshooting.md explains:
//   mpirun -np 2 mistakes <name>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <mpi.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"

namespace {

using namespace std::chrono_literals;

kolo::TensorView view_of(std::vector<float>& values) {
  return {.data = values.data(),
          .dtype = kolo::DType::Float32,
          .shape = {static_cast<std::int64_t>(values.size())}};
}

void allreduce(std::size_t count) {
  std::vector<float> values(count);
  kolo::allreduce(view_of(values), view_of(values), {.name = "loss"});
}

void allreduce_until(const std::function<void()>& mistake) {
  for (int step = 0; step < 1'000'000; ++step) {
    if (kolo::rank() == 1 && step == 100) mistake();
    allreduce(8);
  }
}

void another_shape() { allreduce(kolo::rank() == 0 ? 8 : 16); }

void another_operation() {
  if (kolo::rank() == 0) return allreduce(8);
  std::vector<float> values(8);
  kolo::broadcast(view_of(values), 0, {.name = "loss"});
}

void another_root() {
  std::vector<float> values(8);
  kolo::broadcast(view_of(values), /*root=*/kolo::rank(), {.name = "weights"});
}

/// Rank 1 sends, which ends there: only rank 0 notices.
void another_order() {
  kolo::ProcessSet& set = kolo::add_process_set({0, 1}, kolo::Matching::ByOrder);
  std::vector<float> values(8);
  if (kolo::rank() == 1) kolo::broadcast(view_of(values), 1, {.process_set = &set});
  kolo::barrier();
  if (kolo::rank() == 0) {
    kolo::allreduce(view_of(values), view_of(values), {.name = "loss", .process_set = &set});
  }
  kolo::barrier();
}

void one_rank_alone() {
  if (kolo::rank() == 0) return allreduce(8);
  std::this_thread::sleep_for(5s);
}

void one_rank_late() {
  if (kolo::rank() == 1) std::this_thread::sleep_for(4s);
  allreduce(8);
}

void one_rank_ends() {
  if (kolo::rank() == 0) allreduce(8);
}

void one_rank_throws() {
  if (kolo::rank() == 1) throw std::runtime_error("cannot read part 7 of the data");
  allreduce(8);
}

void one_rank_dies() {
  allreduce_until([] { std::raise(SIGKILL); });
}

void one_rank_stops() {
  allreduce_until([] {
    if (::fork() == 0) {  // ends the stopped process
      std::this_thread::sleep_for(5s);
      ::kill(::getppid(), SIGKILL);
      ::_exit(0);
    }
    std::raise(SIGSTOP);
  });
}

void name_in_flight() {
  std::vector<float> values(8);
  const auto reduce = [&] {
    return kolo::allreduce_async(view_of(values), view_of(values), {.name = "loss"});
  };
  const kolo::Handle first = reduce();
  const kolo::Handle second = reduce();
}

void no_member() {
  kolo::ProcessSet& first = kolo::add_process_set({0});
  if (kolo::rank() == 0) return;
  std::vector<float> values(8);
  kolo::allreduce(view_of(values), view_of(values), {.name = "loss", .process_set = &first});
}

void complex_minimum() {
  float values[8] = {};
  const kolo::TensorView waves{.data = values, .dtype = kolo::DType::Complex64, .shape = {4}};
  kolo::allreduce(waves, waves, {.op = kolo::ReduceOp::Min, .name = "waves"});
}

void sum_of_booleans() {
  bool values[4] = {};
  const kolo::TensorView mask{.data = values, .dtype = kolo::DType::Bool, .shape = {4}};
  kolo::allreduce(mask, mask, {.op = kolo::ReduceOp::Sum, .name = "mask"});
}

void wrong_splits() {
  std::vector<float> values(8);
  std::vector<float> received(16);
  kolo::alltoall(view_of(values), {5, 5},
                 [&](const std::vector<std::int64_t>&) { return received.data(); },
                 {.name = "tokens"});
}

void child_process() {
  if (fork() != 0) {
    ::wait(nullptr);
    return;
  }
  try {
    allreduce(8);
  } catch (const kolo::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  ::_exit(0);
}

void no_mistake() {}

const std::map<std::string, std::function<void()>> kMistakes{
    {"another_operation", another_operation},
    {"another_order", another_order},
    {"another_root", another_root},
    {"another_shape", another_shape},
    {"child_process", child_process},
    {"complex_minimum", complex_minimum},
    {"name_in_flight", name_in_flight},
    {"no_member", no_member},
    {"none", no_mistake},
    {"one_rank_alone", one_rank_alone},
    {"one_rank_dies", one_rank_dies},
    {"one_rank_ends", one_rank_ends},
    {"one_rank_late", one_rank_late},
    {"one_rank_stops", one_rank_stops},
    {"one_rank_throws", one_rank_throws},
    {"sum_of_booleans", sum_of_booleans},
    {"wrong_splits", wrong_splits},
};

/// Initializes MPI like a program that uses MPI itself. Returns this process's rank.
int start_mpi(int level) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, level, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "none";
  if (name == "no_runtime") return kolo::rank();
  if (name == "no_threads") start_mpi(MPI_THREAD_SINGLE);
  if (name == "other_settings" && start_mpi(MPI_THREAD_MULTIPLE) == 1) {
    ::setenv("KOLO_FUSION", "off", /*overwrite=*/1);
  }
  const kolo::Runtime runtime;
  kMistakes.at(name)();
}
