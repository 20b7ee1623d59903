// Saves checkpoints with DistributedOptimizer::save() until it is killed, and loads the result in a
// later run; see kill_test.py and two_jobs_test.py.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include <torch/torch.h>

#include "checkpoint/kill_at.hpp"
#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"

namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage = R"(usage:
  training_victim save <folder> <number> [<rank> <moment>]
      saves checkpoint <number>, keeps one; <rank> is killed at its call <moment> (see kill_at.hpp)
  training_victim save-on <folder> <number>
      saves checkpoints from <number> on, and prints each number when it is saved
  training_victim read <folder>
      loads the newest checkpoint; prints its number and its name
  training_victim read-on <folder>
      does so for every line of its input
  training_victim check <folder> <number>
      loads the newest checkpoint and every other, saves checkpoint <number> and loads that too
)";

/// A sharded model of 3.3 MiB with as much optimizer state. Checkpoint n has values that depend on
/// n.
class Training {
 public:
  Training() : inner_(parameters(), torch::optim::SGDOptions(0.5).momentum(0.5)) {
    kolo::DistributedOptimizer::Options options;
    options.shard = kolo::Shard::Optimizer;
    optimizer_ = std::make_unique<kolo::DistributedOptimizer>(
        inner_, kolo::DistributedOptimizer::NamedParameters{{"weight", weight_}, {"bias", bias_}},
        options);
    (weight_.sum() + bias_.sum()).backward();
    optimizer_->step();  // shards it
  }

  void save(const fs::path& folder, std::int64_t number) {
    set(number);
    kolo::barrier();  // ranks share the memory of their parameters
    optimizer_->save(folder, {.keep_last = 1, .extras = {{"number", std::to_string(number)}}});
  }

  /// Throws if a value does not match the checkpoint's number.
  kolo::Loaded load(const fs::path& folder) {
    set(-1);
    kolo::barrier();
    kolo::Loaded loaded = optimizer_->load(folder);
    const std::int64_t number = std::stoll(loaded.extras.at("number"));
    bool is_whole = torch::equal(weight_, values(weight_, number)) &&
                    torch::equal(bias_, values(bias_, number)) && !inner_.state().empty();
    for (const auto& [key, state] : inner_.state()) {
      const at::Tensor momentum = momentum_of(*state);
      is_whole = is_whole && torch::equal(momentum, torch::full_like(momentum, -number));
    }
    if (!is_whole) throw std::runtime_error(loaded.path.string() + " has other values");
    return loaded;
  }

 private:
  std::vector<at::Tensor> parameters() {
    weight_ = torch::zeros({1237, 701}).requires_grad_();
    bias_ = torch::zeros({701}).requires_grad_();
    return {weight_, bias_};
  }
  static at::Tensor values(const at::Tensor& parameter, std::int64_t number) {
    return torch::arange(parameter.numel())
        .remainder(997)
        .add(number)
        .to(at::kFloat)
        .view_as(parameter);
  }
  static at::Tensor& momentum_of(torch::optim::OptimizerParamState& state) {
    return static_cast<torch::optim::SGDParamState&>(state).momentum_buffer();
  }
  void set(std::int64_t number) {
    const at::NoGradGuard no_grad;
    for (at::Tensor* parameter : {&weight_, &bias_}) parameter->copy_(values(*parameter, number));
    for (const auto& [key, state] : inner_.state()) momentum_of(*state).fill_(-number);
  }

  at::Tensor weight_, bias_;
  torch::optim::SGD inner_;
  std::unique_ptr<kolo::DistributedOptimizer> optimizer_;
};

void save_on(Training& training, int rank, const fs::path& folder, std::int64_t number) {
  std::printf("rank %d is process %d\n", rank, ::getpid());
  for (;; ++number) {
    std::fflush(stdout);
    training.save(folder, number);
    if (rank == 0) std::printf("saved %ld\n", static_cast<long>(number));
  }
}

void read(Training& training, const fs::path& folder) {
  const kolo::Loaded loaded = training.load(folder);
  std::printf("read %s of %s\n", loaded.extras.at("number").c_str(),
              loaded.path.filename().c_str());
}

void read_repeatedly(Training& training, const fs::path& folder) {
  for (std::string line; std::getline(std::cin, line); std::fflush(stdout)) {
    try {
      read(training, folder);
    } catch (const std::exception& error) {
      std::printf("failed: %s\n", error.what());
    }
  }
}

void check(Training& training, const fs::path& folder, std::int64_t number) {
  read(training, folder);
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("checkpoint-")) training.load(entry.path());
  }
  training.save(folder, number);
  read(training, folder);
}

int run(const std::vector<std::string>& arguments) {
  const std::size_t count = arguments.size();
  const auto is = [&](const char* command, std::size_t least) {
    return count >= least && arguments[0] == command;
  };
  if (!is("save", 3) && !is("save-on", 3) && !is("read", 2) && !is("read-on", 2) &&
      !is("check", 3)) {
    std::cerr << kUsage;
    return 2;
  }
  const kolo::Runtime runtime;
  Training training;
  const std::string& folder = arguments[1];
  if (is("read", 2)) read(training, folder);
  if (is("read-on", 2)) read_repeatedly(training, folder);
  if (count < 3) return 0;
  const std::int64_t number = std::stoll(arguments[2]);
  if (is("check", 3)) check(training, folder, number);
  if (is("save-on", 3)) save_on(training, runtime.rank(), folder, number);
  if (is("save", 3)) {
    if (count == 5 && std::stoi(arguments[3]) == runtime.rank()) {
      kolo::test::kill_at(folder, std::stol(arguments[4]));
    }
    training.save(folder, number);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "training_victim: " << error.what() << "\n";
    return 1;
  }
}
