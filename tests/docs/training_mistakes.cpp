// Makes one of the training mistakes that docs/troubleshooting.md explains:
//   mpirun -np 2 training_mistakes <name>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <string>

#include <torch/torch.h>

#include "kolo/extras/accelerator.hpp"
#include "kolo/kolo.hpp"

namespace {

using torch::nn::Linear;

/// A model of one layer, with what sharded training needs.
struct Training {
  explicit Training(std::int64_t width = 4, kolo::DistributedOptimizerOptions options = sharded())
      : model(Linear(width, 1)),
        input(torch::ones({2, width})),
        adam(model->parameters(), 1e-2),
        optimizer(adam, *model, options) {}

  static kolo::DistributedOptimizerOptions sharded() { return {.shard = kolo::Shard::Gradients}; }
  void backward() { model->forward(input).sum().backward(); }
  void step() {
    optimizer.zero_grad();
    backward();
    optimizer.step();
  }

  Linear model;
  at::Tensor input;
  torch::optim::Adam adam;
  kolo::DistributedOptimizer optimizer;
};

std::filesystem::path folder() {
  return std::filesystem::temp_directory_path() / "kolo-training-mistakes";
}

void backward_twice() {
  Training training;
  training.backward();
  training.backward();
}

void backward_after_synchronize() {
  Training training(4, {});
  training.backward();
  training.optimizer.synchronize();
  training.backward();
}

void clips_too_early() {
  Training training;
  training.backward();
  torch::nn::utils::clip_grad_norm_(training.model->parameters(), 1.0);
}

void accelerates_twice() {
  Linear model(4, 1);
  kolo::Accelerator accelerator;
  accelerator.prepare(*model, torch::optim::Adam(model->parameters(), 1e-2));
  const at::Tensor loss = model->forward(torch::ones({2, 4})).sum();
  accelerator.backward(loss);
  accelerator.backward(loss);
}

void drops_passes() {
  Linear model(4, 1);
  kolo::Accelerator accelerator({.gradient_accumulation_steps = 2});
  accelerator.prepare(*model, torch::optim::Adam(model->parameters(), 1e-2));
  for (int pass = 0; pass < 2; ++pass) {
    model->zero_grad();
    accelerator.backward(model->forward(torch::ones({2, 4})).sum());
    accelerator.step();
  }
}

void forgets_broadcast() { Training().optimizer.check_replicas(); }

void counts_on_one_rank() {
  Training training;
  if (kolo::rank() == 0) {
    training.optimizer.backward(training.model->forward(training.input).sum(), 2);
  } else {
    training.backward();
  }
  training.optimizer.step();
}

void saves_wrapped_optimizer() {
  Training training;
  training.step();
  std::ostringstream file;
  torch::save(training.adam, file);
}

void saves_released_parameters() {
  Training training(4, {.shard = kolo::Shard::Full});
  std::ostringstream file;
  torch::save(training.model, file);
}

void no_checkpoint() {
  std::filesystem::create_directories(folder());
  Training().optimizer.load(folder());
}

void no_folder() { Training().optimizer.load(folder() / "misspelt"); }

void another_model() {
  Training training;
  training.step();
  training.optimizer.save(folder() / "saved");
  Training(/*width=*/8).optimizer.load(folder() / "saved");
}

void converts_model() {
  Training training;
  training.step();
  training.model->to(at::kDouble);
  training.input = training.input.to(at::kDouble);
  training.step();
}

void writes_outside_step() {
  Training training(4, {.shard = kolo::Shard::Full});
  {
    const torch::NoGradGuard no_gradients;
    training.model->weight.zero_();
  }
  training.step();
}

void uses_deferred_model() {
  auto model = kolo::deferred<Linear>(4, 1);
  model->forward(torch::ones({2, 4}));
}

void lbfgs() {
  Linear model(4, 1);
  torch::optim::LBFGS optimizer(model->parameters());
  const kolo::DistributedOptimizer distributed(optimizer, *model);
}

void another_option() { Training(4, {.backward_passes_per_step = kolo::rank() + 1}); }

void complex_tensor() { kolo::allreduce(torch::zeros({2}, at::kComplexHalf), {.name = "waves"}); }

const std::map<std::string, std::function<void()>> kMistakes{
    {"accelerates_twice", accelerates_twice},
    {"another_model", another_model},
    {"another_option", another_option},
    {"backward_after_synchronize", backward_after_synchronize},
    {"backward_twice", backward_twice},
    {"clips_too_early", clips_too_early},
    {"complex_tensor", complex_tensor},
    {"converts_model", converts_model},
    {"counts_on_one_rank", counts_on_one_rank},
    {"drops_passes", drops_passes},
    {"forgets_broadcast", forgets_broadcast},
    {"lbfgs", lbfgs},
    {"no_checkpoint", no_checkpoint},
    {"no_folder", no_folder},
    {"saves_released_parameters", saves_released_parameters},
    {"saves_wrapped_optimizer", saves_wrapped_optimizer},
    {"uses_deferred_model", uses_deferred_model},
    {"writes_outside_step", writes_outside_step},
};

}  // namespace

int main(int argc, char** argv) {
  const kolo::Runtime runtime;
  kMistakes.at(argc > 1 ? argv[1] : "lbfgs")();
}
