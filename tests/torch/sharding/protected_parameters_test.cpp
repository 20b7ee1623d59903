// KOLO_PROTECT_PARAMETERS: writes to the shared copy of the parameters kill the process with a
// message.
#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/collectives.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "support/mpi/test_world.hpp"
#include "torch/sharding.hpp"
#include "torch/small_training.hpp"
#include "torch/torch_fixture.hpp"

namespace kolo::test::protected_parameters_test {

constexpr std::int64_t kElements = 5003;

Config protecting(bool is_on = true) {
  Config config = config_from_environment();
  config.protect_parameters = is_on;
  return config;
}

struct Death {
  bool is_by_fault = false;
  std::string text;
};

/// Runs `work` in a child process. Its output on stderr must fit into a pipe.
Death death_of(const std::function<void()>& work) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const ::pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    work();
    ::_exit(0);
  }
  ::close(ends[1]);
  Death death;
  std::array<char, 4096> block{};
  for (::ssize_t count = 0; (count = ::read(ends[0], block.data(), block.size())) > 0;) {
    death.text.append(block.data(), static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  death.is_by_fault = (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) ||
                      (WIFEXITED(status) && WEXITSTATUS(status) != 0);  // by a sanitizer's handler
  return death;
}

class ProtectedParametersTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!Config::from_environment().shared_memory) GTEST_SKIP() << "ranks share no memory";
    if (Runtime(in_test_world(protecting())).local_size() == 1) GTEST_SKIP() << "no rank shares it";
  }
};

/// The write is to the second of two parameters.
TEST_F(ProtectedParametersTest, Writes_EndTheProcessAndNameTheParameter) {
  const Runtime runtime(in_test_world(protecting()));
  const at::Tensor first = torch::ones({kElements}).requires_grad_();
  const at::Tensor second = torch::ones({kElements}, torch::kDouble).requires_grad_();
  const at::Tensor frozen = torch::ones({kElements}, torch::kInt);
  torch::optim::SGD inner({first, second}, 1.0);
  DistributedOptimizer optimizer(
      inner, {{"first", first}, {"encoder.weight", second}, {"frozen", frozen}}, full_per_node());
  for (int step = 0; step < 2; ++step) {
    const Death by_pointer = death_of([&] { second.mutable_data_ptr<double>()[1234] = 3; });
    EXPECT_TRUE(by_pointer.is_by_fault);
    expect_contains(by_pointer.text, "[kolo rank " + std::to_string(runtime.rank()) +
                                         "] error: parameter 'encoder.weight' was written at "
                                         "element 1234 outside step()");
    expect_contains(by_pointer.text, "full_parameters()");
    const Death by_data = death_of([&] { frozen.data()[4321] = 3; });
    EXPECT_TRUE(by_data.is_by_fault);
    expect_contains(by_data.text, "parameter 'frozen' was written at element 4321");
    (first.sum() + second.sum()).backward();
    optimizer.step();
    EXPECT_TRUE(torch::equal(second, torch::full_like(second, -step)));
    barrier();
  }
}

TEST_F(ProtectedParametersTest, OtherFaults_AreThoseOfTheProgram) {
  const Runtime runtime(in_test_world(protecting()));
  const at::Tensor weight = torch::ones({kElements}).requires_grad_();
  torch::optim::SGD inner({weight}, 1.0);
  const DistributedOptimizer optimizer(inner, {{"encoder.weight", weight}}, full_per_node());
  const auto expect_own = [](const std::function<void()>& work) {
    const Death death = death_of(work);
    EXPECT_TRUE(death.is_by_fault) << death.text;
    EXPECT_EQ(death.text.find("encoder.weight"), std::string::npos) << death.text;
  };
  expect_own([] {
    volatile int* volatile nowhere = nullptr;
    *nowhere = 1;
  });
  expect_own([] {
    std::raise(SIGSEGV);  // Open MPI's handler prints a stack trace and uninstalls itself
    std::raise(SIGSEGV);
  });
  expect_own([&] {
    // Mapped, but not writable.
    volatile char* volatile code = reinterpret_cast<char*>(&std::strlen);
    *code = 1;
  });
}

at::Tensor trained(bool is_protected) {
  const Runtime runtime(in_test_world(protecting(is_protected)));
  const CommonFolder folder;
  SmallTraining training(Shard::Full);
  broadcast_parameters(*training.model, 0);
  training.run(0, 3);
  training.save(folder.path());
  training.optimizer->full_parameters([&] {
    for (const at::Tensor& parameter : training.model->parameters()) parameter.data().mul_(0.5);
  });
  training.run(3, 5);
  training.load(folder.path());
  training.run(3, 5);
  training.optimizer->save_full_state(folder.path() / "all.safetensors");
  training.optimizer->load(folder.path() / "all.safetensors", {.strict = false});
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : training.model->parameters()) {
    parameters.push_back(parameter.detach().flatten().clone());
  }
  barrier();
  return torch::cat(parameters);
}

TEST_F(ProtectedParametersTest, TrainingIsTheSame) {
  if (Config::from_environment().fake_nodes > 0) GTEST_SKIP() << "it is one of a single node";
  EXPECT_TRUE(torch::equal(trained(true), trained(false)));
}

}  // namespace kolo::test::protected_parameters_test
