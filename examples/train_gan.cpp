// Two models and two optimizers that train against each other: a generator learns to draw discs
// that a discriminator cannot tell from real ones, like DCGAN (Radford et al. 2015), on generated
// images of 16×16.
//
//   mpirun -np 2 train_gan --help
#include <cstdint>
#include <iostream>
#include <optional>
#include <span>
#include <vector>

#include <ATen/Functions.h>
#include <CLI/CLI.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "common/agreement.hpp"
#include "common/command_line.hpp"
#include "common/digest.hpp"
#include "common/resources.hpp"
#include "kolo/kolo.hpp"

namespace {

constexpr std::int64_t kNoise = 16;
constexpr std::int64_t kSide = 16;
constexpr double kRadius = 4;

struct Options {
  int steps = 60;
  std::int64_t batch = 16;
  int seed = 1;
};

std::optional<examples::Exit> parse_options(int argc, char** argv, Options& options) {
  CLI::App app("Trains a small DCGAN to draw discs.\n", "train_gan");
  const CLI::Range count(1, 1 << 20);
  app.add_option("--steps", options.steps, "training steps of each of the two models")
      ->check(count)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "images of each rank in a step")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of weights, discs and noise")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  return examples::parse_command_line(app, argc, argv);
}

torch::nn::Sequential make_generator() {
  using Shape = torch::nn::ConvTranspose2dOptions;
  return torch::nn::Sequential(
      torch::nn::ConvTranspose2d(Shape(kNoise, 32, 4).bias(false)), torch::nn::BatchNorm2d(32),
      torch::nn::ReLU(),
      torch::nn::ConvTranspose2d(Shape(32, 16, 4).stride(2).padding(1).bias(false)),
      torch::nn::BatchNorm2d(16), torch::nn::ReLU(),
      torch::nn::ConvTranspose2d(Shape(16, 1, 4).stride(2).padding(1)), torch::nn::Sigmoid());
}

torch::nn::Sequential make_discriminator() {
  using Shape = torch::nn::Conv2dOptions;
  const auto leaky = [] {
    return torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2));
  };
  return torch::nn::Sequential(torch::nn::Conv2d(Shape(1, 16, 4).stride(2).padding(1)), leaky(),
                               torch::nn::Conv2d(Shape(16, 32, 4).stride(2).padding(1)), leaky(),
                               torch::nn::Conv2d(Shape(32, 1, 4)), torch::nn::Flatten());
}

/// Discs with soft edges around random centres: [count, 1, 16, 16], from 0 to 1.
at::Tensor draw_discs(std::int64_t count) {
  const at::Tensor line = at::arange(kSide, at::kFloat);
  const at::Tensor middles = at::rand({count, 2, 1, 1}) * 6 + 5;
  const at::Tensor dy = line.view({1, kSide, 1}) - middles.select(1, 0);
  const at::Tensor dx = line.view({1, 1, kSide}) - middles.select(1, 1);
  return (kRadius - (dx * dx + dy * dy).sqrt()).sigmoid().unsqueeze(1);
}

at::Tensor loss_of(const at::Tensor& logits, double truth) {
  return at::binary_cross_entropy_with_logits(logits, at::full_like(logits, truth));
}

struct Losses {
  double discriminator;
  double generator;
};

class Gan {
 public:
  explicit Gan(const Options& options) : options_(options) {
    kolo::broadcast_parameters(*generator_, /*root=*/0);
    kolo::broadcast_parameters(*discriminator_, /*root=*/0);
  }

  Losses step() {
    const at::Tensor fakes = generator_->forward(at::randn({options_.batch, kNoise, 1, 1}));
    discriminator_optimizer_.zero_grad();
    const at::Tensor verdict = loss_of(discriminator_->forward(draw_discs(options_.batch)), 1.0) +
                               loss_of(discriminator_->forward(fakes.detach()), 0.0);
    verdict.backward();
    discriminator_optimizer_.step();

    generator_optimizer_.zero_grad();
    at::Tensor disguise;
    {
      // The backward pass runs through the discriminator, whose gradients are not needed here.
      const auto local = discriminator_optimizer_.no_sync();
      disguise = loss_of(discriminator_->forward(fakes), 1.0);
      disguise.backward();
    }
    generator_optimizer_.step();
    return {verdict.item<double>(), disguise.item<double>()};
  }

  /// A checksum of all parameters of both models.
  std::uint64_t digest() const {
    examples::Digest digest;
    for (const auto* model : {&generator_, &discriminator_}) {
      for (const at::Tensor& parameter : (*model)->parameters()) {
        digest.add(std::span(static_cast<const std::byte*>(parameter.const_data_ptr()),
                             parameter.nbytes()));
      }
    }
    return digest.value();
  }

 private:
  static torch::optim::AdamOptions adam() {
    return torch::optim::AdamOptions(2e-3).betas({0.5, 0.999});
  }

  Options options_;
  torch::nn::Sequential generator_ = make_generator();
  torch::nn::Sequential discriminator_ = make_discriminator();
  torch::optim::Adam generator_adam_{generator_->parameters(), adam()};
  torch::optim::Adam discriminator_adam_{discriminator_->parameters(), adam()};
  kolo::DistributedOptimizer generator_optimizer_{generator_adam_, *generator_};
  kolo::DistributedOptimizer discriminator_optimizer_{discriminator_adam_, *discriminator_};
};

}  // namespace

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  examples::share_cores(runtime.local_size());
  Options options;
  if (const auto exit = parse_options(argc, argv, options)) {
    return examples::leave(*exit, runtime.rank() == 0);
  }
  at::manual_seed(static_cast<std::uint64_t>(options.seed * 1000 + runtime.rank()));
  Gan gan(options);
  for (int step = 1; step <= options.steps; ++step) {
    const Losses losses = gan.step();
    if (step % 20 != 0 && step != options.steps) continue;
    const double discriminator = examples::mean_over_ranks(losses.discriminator);
    const double generator = examples::mean_over_ranks(losses.generator);
    if (runtime.rank() == 0) {
      std::cout << "step " << step << ": loss of the discriminator " << discriminator
                << ", of the generator " << generator << std::endl;
    }
  }
  const std::vector<int> different = examples::ranks_that_differ(gan.digest());
  if (runtime.rank() == 0) {
    std::cout << "parameters " << (different.empty() ? "equal on all ranks" : "DIFFER")
              << std::endl;
  }
  return different.empty() ? 0 : 1;
}
