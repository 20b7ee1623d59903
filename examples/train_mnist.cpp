// Trains a small ConvNet on drawn digits, or on MNIST. The ranks' shares have different sizes, so
// that ranks run out of batches at different times: join() lets the others continue.
//
//   mpirun -np 2 train_mnist [--data FOLDER]
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/optim/adam.h>

#include "common/agreement.hpp"
#include "common/command_line.hpp"
#include "common/output_file.hpp"
#include "common/resources.hpp"
#include "drawn/pictures.hpp"
#include "kolo/kolo.hpp"
#include "mnist/conv_net.hpp"
#include "mnist/digits.hpp"
#include "mnist/shards.hpp"

namespace {

constexpr int kWrongInput = 2;
constexpr std::int64_t kTestBatch = 500;

struct Options {
  std::filesystem::path data;
  int epochs = 8;
  std::int64_t batch = 32;
  double learning_rate = 1e-3;
  double imbalance = 0.25;
  int seed = 1;
  std::filesystem::path json;
};

std::optional<examples::Exit> parse_options(int argc, char** argv, Options& options) {
  CLI::App app(
      "Trains a ConvNet on drawn digits, or on those of the MNIST database, on as many processes "
      "as "
      "mpirun starts.\n",
      "train_mnist");
  const CLI::Range count(1, 1 << 20);
  app.add_option(
         "--data", options.data,
         "folder with the unpacked MNIST files: train-images-idx3-ubyte, "
         "train-labels-idx1-ubyte, and the same with t10k. With only the t10k files, a fifth "
         "of the images is the test set. Default: 4000 drawn digits for training and 1000 "
         "for the test")
      ->type_name("FOLDER");
  app.add_option("--epochs", options.epochs, "passes over all images")
      ->check(count)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "images of each rank in a step")
      ->check(count)
      ->capture_default_str();
  app.add_option("--lr", options.learning_rate, "learning rate of Adam")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--imbalance", options.imbalance,
                 "ratio of the last rank's number of images to the first rank's")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of initial weights and the order of images")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--json", options.json, "write the results to this file too")->type_name("FILE");
  return examples::parse_command_line(app, argc, argv);
}

struct Files {
  mnist::Dataset dataset;
  std::unique_ptr<examples::OutputFile> json;  // on rank 0, if a report is requested
};

mnist::Digits draw(std::size_t first, std::size_t count) {
  const auto drawn = drawn::Pictures(drawn::Alphabet::Digits, first, count).range(0, count);
  return {drawn.data, drawn.target};
}

mnist::Dataset drawn_digits() {
  return {.training = draw(0, 4000), .test = draw(/*first=*/1'000'000, 1000)};
}

std::optional<Files> open_files_on_all_ranks(const Options& options) {
  Files files;
  std::string error;
  try {
    files.dataset = options.data.empty() ? drawn_digits() : mnist::load_dataset(options.data);
    if (kolo::rank() == 0 && !options.json.empty()) {
      files.json = std::make_unique<examples::OutputFile>(options.json);
      error = files.json->error();
    }
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  if (!examples::all_ranks_succeeded(error)) return std::nullopt;
  return files;
}

/// One pass over this rank's share of an order that is the same on all ranks.
void train_epoch(mnist::ConvNet& model, torch::optim::Optimizer& optimizer,
                 const mnist::Digits& digits, const Options& options) {
  const at::Tensor order = at::randperm(digits.labels.size(0), at::kLong);
  const auto bounds = mnist::shard_bounds(digits.labels.size(0), kolo::size(), options.imbalance);
  const auto rank = static_cast<std::size_t>(kolo::rank());
  for (std::int64_t begin = bounds[rank]; begin < bounds[rank + 1]; begin += options.batch) {
    const std::int64_t end = std::min(begin + options.batch, bounds[rank + 1]);
    const at::Tensor batch = order.slice(0, begin, end);
    optimizer.zero_grad();
    at::cross_entropy_loss(model(digits.images.index_select(0, batch)),
                           digits.labels.index_select(0, batch))
        .backward();
    optimizer.step();
  }
}

/// The accuracy of the model; every rank evaluates its part of the digits.
double accuracy(mnist::ConvNet& model, const mnist::Digits& digits) {
  const at::NoGradGuard no_grad;
  const auto bounds = mnist::shard_bounds(digits.labels.size(0), kolo::size(), 0);
  const auto rank = static_cast<std::size_t>(kolo::rank());
  at::Tensor right = at::zeros({}, at::kLong);
  for (std::int64_t begin = bounds[rank]; begin < bounds[rank + 1]; begin += kTestBatch) {
    const std::int64_t end = std::min(begin + kTestBatch, bounds[rank + 1]);
    const at::Tensor guess = model(digits.images.slice(0, begin, end)).argmax(1);
    right += guess.eq(digits.labels.slice(0, begin, end)).sum();
  }
  kolo::allreduce_(right, {.op = kolo::ReduceOp::Sum});
  return right.item<double>() / static_cast<double>(digits.labels.size(0));
}

double train(const Options& options, const mnist::Dataset& dataset) {
  at::manual_seed(static_cast<std::uint64_t>(options.seed));
  mnist::ConvNet model;
  torch::optim::Adam adam(model->parameters(), options.learning_rate);
  kolo::broadcast_parameters(*model, /*root=*/0);
  kolo::DistributedOptimizer optimizer(adam, *model, {.join_divisor = kolo::JoinDivisor::Active});
  double reached = 0;
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    train_epoch(model, optimizer, dataset.training, options);
    optimizer.join();  // ranks without batches help the others, then get their state
    reached = accuracy(model, dataset.test);
    if (kolo::rank() == 0) {
      std::cout << "epoch " << epoch << " of " << options.epochs << ": accuracy " << 100 * reached
                << " % of " << dataset.test.labels.size(0) << " digits" << std::endl;
    }
  }
  return reached;
}

}  // namespace

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  examples::share_cores(runtime.local_size());
  Options options;
  if (const auto exit = parse_options(argc, argv, options)) {
    return examples::leave(*exit, runtime.rank() == 0);
  }
  std::optional<Files> files = open_files_on_all_ranks(options);
  if (!files) return kWrongInput;
  const double result = train(options, files->dataset);
  if (files->json) {
    const nlohmann::ordered_json report{
        {"ranks", kolo::size()}, {"epochs", options.epochs}, {"accuracy", result}};
    files->json->write(report.dump() + '\n');
  }
  return 0;
}
