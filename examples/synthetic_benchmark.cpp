// ResNet-50's training speed on random data, in images per second: the benchmark that Horovod's
// users know.
//
//   mpirun -np 2 synthetic_benchmark --help
#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>

#include "common/agreement.hpp"
#include "common/command_line.hpp"
#include "common/efficiency.hpp"
#include "common/freed_memory.hpp"
#include "common/model.hpp"
#include "common/output_file.hpp"
#include "common/resources.hpp"
#include "common/statistics.hpp"
#include "kolo/kolo.hpp"
#include "resnet/resnet50.hpp"

namespace {

constexpr int kWrongInput = 2;

struct Options {
  int batch = 8;
  std::vector<int> images{64, 224};
  int iterations = 10;
  int warm_up = 2;
  std::string compression = "none";
  kolo::DeviceKind device = kolo::DeviceKind::Cpu;
  std::optional<kolo::Shard> shard;
  bool fused = false;
  int efficiency = 0;  // rounds; 0: not measured
  std::filesystem::path json;
};

std::optional<examples::Exit> parse_options(int argc, char** argv, Options& options) {
  CLI::App app("Measures how many images a second ResNet-50 trains, on random data.\n",
               "synthetic_benchmark");
  const CLI::Range count(1, 1 << 20);
  app.add_option("--batch", options.batch, "images of each rank in a step")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--image", options.images,
                 "height and width of the images in pixels; one run for each number")
      ->check(CLI::Range(32, 4096))
      ->capture_default_str();
  app.add_option("--iterations", options.iterations, "steps to measure")
      ->check(count)
      ->capture_default_str();
  app.add_option("--warmup", options.warm_up, "steps at the start, not counted")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--compression", options.compression,
                 "how gradients are compressed when they are sent: none, fp16, int8, …")
      ->capture_default_str();
  examples::add_device_option(app, options.device);
  examples::add_shard_option(app, options.shard);
  app.add_flag("--fused", options.fused, "use LibTorch's fused kernel for SGD");
  examples::add_efficiency_option(app, options.efficiency);
  app.add_option("--json", options.json, "write the results to this file too")->type_name("FILE");
  return examples::parse_command_line(app, argc, argv);
}

struct Batch {
  at::Tensor images;
  at::Tensor classes;
};

// Different on each rank.
Batch random_batch(const Options& options, int image) {
  at::manual_seed(static_cast<std::uint64_t>(1 + kolo::rank()));
  const c10::Device device = examples::device_of_rank(options.device);
  return {at::randn({options.batch, 3, image, image}, device),
          at::randint(1000, {options.batch}, at::TensorOptions(at::kLong).device(device))};
}

// The same on all ranks, so that models that are trained alone differ only because of their
// batches.
resnet::ResNet50 make_model(const Options& options) {
  at::manual_seed(0);
  resnet::ResNet50 model;
  model->to(examples::device_of_rank(options.device));
  return model;
}

torch::optim::SGD make_optimizer(resnet::ResNet50& model) {
  return torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
}

kolo::DistributedOptimizer::Options distribution(const Options& options) {
  return {.compression = kolo::Compression::named(options.compression),
          .shard = options.shard,
          .fused = options.fused};
}

void compute_gradients(resnet::ResNet50& model, torch::optim::Optimizer& optimizer,
                       const Batch& batch) {
  optimizer.zero_grad();
  at::cross_entropy_loss(model(batch.images), batch.classes).backward();
}

void train_step(resnet::ResNet50& model, torch::optim::Optimizer& optimizer, const Batch& batch) {
  compute_gradients(model, optimizer, batch);
  optimizer.step();
}

nlohmann::ordered_json measure_speed(const Options& options, int image) {
  using Clock = std::chrono::steady_clock;
  resnet::ResNet50 model = make_model(options);
  torch::optim::SGD sgd = make_optimizer(model);
  kolo::broadcast_parameters(*model, /*root=*/0);
  kolo::DistributedOptimizer optimizer(sgd, *model, distribution(options));

  const Batch batch = random_batch(options, image);
  for (int i = 0; i < options.warm_up; ++i) train_step(model, optimizer, batch);
  std::vector<double> step_ms;
  for (int i = 0; i < options.iterations; ++i) {
    const auto start = Clock::now();
    train_step(model, optimizer, batch);
    examples::synchronize(batch.images.device());
    step_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  const double step_ms_median = examples::mean_over_ranks(examples::median(step_ms));
  const double images_per_second = kolo::size() * options.batch / step_ms_median * 1e3;
  if (kolo::rank() == 0) {
    std::cout << image << "x" << image << ", batch " << options.batch << ": " << images_per_second
              << " images/s on " << kolo::size() << (kolo::size() == 1 ? " rank, " : " ranks, ")
              << step_ms_median << " ms a step" << std::endl;
  }
  return {{"images_per_second", images_per_second}, {"step_ms_median", step_ms_median}};
}

// Sets `is_right` to false if the ranks have not trained together.
nlohmann::ordered_json measure_efficiency(const Options& options, int image, bool& is_right) {
  resnet::ResNet50 local_model = make_model(options);
  torch::optim::SGD local_sgd = make_optimizer(local_model);
  resnet::ResNet50 model = make_model(options);
  torch::optim::SGD sgd = make_optimizer(model);
  kolo::broadcast_parameters(*model, /*root=*/0);
  kolo::DistributedOptimizer optimizer(sgd, *model, distribution(options));
  const examples::Digest start = examples::digest_of_parameters(*model);

  const Batch batch = random_batch(options, image);
  const examples::Efficiency efficiency = examples::measure_efficiency(
      [&] {
        compute_gradients(local_model, local_sgd, batch);
        examples::step_alone(local_sgd, options.fused);
      },
      [&] { train_step(model, optimizer, batch); },
      [&] { examples::synchronize(batch.images.device()); }, options.efficiency);
  if (kolo::rank() == 0) {
    std::cout << image << "x" << image << ", batch " << options.batch << ": " << efficiency;
  }
  const examples::TrainedDigests digests{.start = start,
                                         .together = examples::digest_of_parameters(*model),
                                         .alone = examples::digest_of_parameters(*local_model)};
  if (!examples::all_ranks_succeeded(examples::training_error(digests))) is_right = false;
  nlohmann::ordered_json result = examples::to_json(efficiency);
  result["parameters"] = examples::count_parameters(*model);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  kolo::Runtime runtime;
  examples::share_cores(runtime.local_size());
  examples::keep_freed_memory();
  Options options;
  if (const auto exit = parse_options(argc, argv, options)) {
    return examples::leave(*exit, runtime.rank() == 0);
  }
  examples::OutputFile json(runtime.rank() == 0 ? options.json : "");
  if (!examples::all_ranks_succeeded(json.error())) return kWrongInput;
  if (!examples::has_device(options.device)) return kWrongInput;

  bool is_right = true;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const int image : options.images) {
    nlohmann::ordered_json result{
        {"ranks", runtime.size()}, {"image", image}, {"batch", options.batch}};
    result.update(options.efficiency > 0 ? measure_efficiency(options, image, is_right)
                                         : measure_speed(options, image));
    results.push_back(std::move(result));
  }
  if (json.is_wanted()) json.write(results.dump(2) + '\n');
  return is_right ? 0 : 1;
}
