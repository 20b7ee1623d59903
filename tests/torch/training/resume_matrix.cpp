// Resumes in fresh processes: a job saves every shard mode, precision and optimizer class of a
// model of odd tensors, and another job, with another number of ranks, loads each in every mode.
//
//   mpirun -np 2 resume_matrix save <folder>
//   mpirun -np 3 resume_matrix resume <folder>
//
// A resumed training must have the bits that were saved, and go on like the one that saved.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/torch.h>

#include "kolo/kolo.hpp"
#include "torch/checkpoint/safetensors_reader.hpp"
#include "torch/tensors/tensor_memory.hpp"
#include "torch/training_checkpoints.hpp"

namespace kolo::test::resume_matrix {

namespace fs = std::filesystem;
using namespace torch::optim;

constexpr std::int64_t kRows = 6;  // of a batch, over all ranks
constexpr std::int64_t kColumns = 5;

struct Precision {
  const char* name;
  at::ScalarType dtype;
  bool has_masters;
  double tolerance;  // of steps that other numbers of ranks sum in another order
};
constexpr Precision kPrecisions[] = {{"float", at::kFloat, false, 1e-4},
                                     {"bfloat16", at::kBFloat16, false, 0.1},
                                     {"masters", at::kBFloat16, true, 0.1}};

std::vector<OptimizerCase> optimizers() {
  std::vector<OptimizerCase> all = training_checkpoint_test::cases();
  all.push_back({"adam", maker<Adam>(AdamOptions(1e-2).eps(1e-2))});
  all.push_back({"plain_adamw", maker<AdamW>(AdamWOptions(1e-2).eps(1e-2))});
  return all;
}

/// Complex numbers have no maximum, which amsgrad computes.
bool takes_complex(const OptimizerCase& which) { return which.name != std::string_view("adamw"); }

struct Odd : torch::nn::Module {
  Odd(at::ScalarType type, bool has_complex) {
    torch::manual_seed(3);
    const auto add = [&](const char* name, const at::Tensor& values, bool is_trained = true) {
      return register_parameter(name, values, is_trained);
    };
    weight = add("weight", torch::randn({kColumns, kColumns}).to(type));
    register_parameter("tied", weight);
    bias = add("bias", torch::randn({kColumns}).to(type));
    none = add("none", torch::zeros({0, 4}, type));
    scalar = add("scalar", torch::tensor(0.5).to(type));
    one = add("one", torch::full({1}, 0.25).to(type));
    const at::Tensor pairs = torch::randn({3, 2});
    turn = add("turn", has_complex ? torch::view_as_complex(pairs) : pairs);
    frozen = add("frozen", torch::randn({kColumns}).to(type), false);
    add("frozen_none", torch::zeros({0}, type), false);
    add("frozen_rows", torch::randn({kColumns}).to(type).expand({3, -1}), false);
    add("unused", torch::randn({4}).to(type));
    register_buffer("rows", torch::randn({kColumns}).to(type).expand({2, -1}));
    register_buffer("passes", torch::zeros({}, torch::kLong)).add_(1);
  }
  at::Tensor loss(const at::Tensor& rows) {
    const at::Tensor hidden = torch::tanh(torch::linear(rows, weight, bias)) * frozen;
    const at::Tensor out = torch::linear(hidden, weight) * scalar + one;
    return out.to(torch::kFloat).pow(2).mean() + turn.abs().pow(2).mean() +
           none.to(torch::kFloat).sum();
  }
  at::Tensor weight, bias, none, scalar, one, turn, frozen;
};

/// A model and its optimizer, as at the start of a program.
struct Program {
  Program(const OptimizerCase& which, const Precision& of, Shard mode)
      : precision(of),
        model(of.dtype, takes_complex(which)),
        inner(which.make(distinct_parameters(model))) {
    DistributedOptimizer::Options options = with(mode);
    options.master_weights = of.has_masters;
    optimizer = std::make_unique<DistributedOptimizer>(*inner, model, options);
  }
  void run(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer->zero_grad();
      const std::int64_t rows = kRows / Runtime::current().size();
      model
          .loss(batch_rows(step, rows * Runtime::current().rank(), rows, kColumns, torch::kFloat)
                    .to(precision.dtype))
          .backward();
      optimizer->step();
    }
  }

  const Precision& precision;
  Odd model;
  std::unique_ptr<torch::optim::Optimizer> inner;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

/// All tensors of a full state but those of `none`: sharded, no rank steps it or has its state.
std::map<std::string, at::Tensor> read(const fs::path& file) {
  const tensors::SafetensorsReader reader(file);
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, place] : reader.tensors()) {
    at::Tensor values = torch::empty(place.shape, tensors::scalar_type_of(*place.dtype));
    reader.read(name, *place.dtype, 0,
                {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
    if (!name.ends_with("none")) all[name] = values;
  }
  return all;
}

/// The first difference; empty if there is none larger than `tolerance`.
std::string difference(const fs::path& expected, const fs::path& got, double tolerance) {
  const auto a = read(expected);
  const auto b = read(got);
  for (const auto& [name, tensor] : a) {
    if (!b.contains(name)) return "no " + name;
  }
  for (const auto& [name, tensor] : b) {
    if (!a.contains(name)) return "an unexpected " + name;
    const at::Tensor& other = a.at(name);
    if (tensor.sizes() != other.sizes() || tensor.scalar_type() != other.scalar_type()) {
      return name + " of another shape or type";
    }
    const bool is_equal = tolerance == 0.0 ? torch::equal(tensor, other)
                                           : torch::allclose(tensor, other, tolerance, tolerance);
    if (!is_equal) return "other values of " + name;
  }
  return {};
}

std::string join(const Precision& precision, Shard mode, const OptimizerCase& which) {
  return std::string(precision.name) + "-" + std::string(name_of(mode)) + "-" + which.name;
}

/// Runs all cases; returns whether all are right.
bool run(bool saves, const fs::path& folder) {
  const bool is_first = Runtime::current().rank() == 0;
  int tried = 0;
  int wrong = 0;
  const auto check = [&](const std::string& what, const auto& work) {
    ++tried;
    std::string problem;
    try {
      problem = work();
    } catch (const c10::Error& error) {
      problem = error.what_without_backtrace();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (problem.empty()) return;
    ++wrong;
    if (is_first) std::cout << what << ": " << problem << std::endl;
  };
  for (const Precision& precision : kPrecisions) {
    const std::vector<Shard> modes = precision.has_masters ? sharded_modes() : all_modes();
    for (const Shard saved : modes) {
      for (const OptimizerCase& which : optimizers()) {
        const fs::path place = folder / join(precision, saved, which);
        const fs::path now = place / "saved.safetensors";
        const fs::path later = place / "later.safetensors";
        if (saves) {
          check(place.filename(), [&] {
            Program program(which, precision, saved);
            program.run(0, 2);
            program.optimizer->save(place);
            program.optimizer->save_full_state(now);
            program.run(2, 4);
            program.optimizer->save_full_state(later);
            return std::string();
          });
          continue;
        }
        for (const Shard mode : modes) {
          check(join(precision, saved, which) + " loaded with " + std::string(name_of(mode)), [&] {
            Program program(which, precision, mode);
            program.optimizer->load(place);
            program.optimizer->save_full_state(place / "loaded.safetensors");
            std::string problem = difference(now, place / "loaded.safetensors", 0.0);
            program.run(2, 4);
            program.optimizer->save_full_state(place / "went_on.safetensors");
            if (!problem.empty()) return "after load(): " + problem;
            problem = difference(later, place / "went_on.safetensors", precision.tolerance);
            return problem.empty() ? problem : "after two steps: " + problem;
          });
        }
      }
    }
  }
  if (is_first) {
    std::cout << tried << (saves ? " saved" : " resumed") << " by " << Runtime::current().size()
              << " ranks, " << wrong << " wrong" << std::endl;
  }
  return wrong == 0;
}

}  // namespace kolo::test::resume_matrix

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 2 || (arguments[0] != "save" && arguments[0] != "resume")) {
    std::cerr << "resume_matrix save|resume <folder>\n";
    return 2;
  }
  const kolo::Runtime runtime;
  return kolo::test::resume_matrix::run(arguments[0] == "save", arguments[1]) ? 0 : 1;
}
