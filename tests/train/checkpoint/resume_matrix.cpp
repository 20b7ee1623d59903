// Resumes in fresh processes: a job saves every shard mode, precision and optimizer class of a
// model of odd tensors, and another job, with another number of ranks, loads each in every mode.
//
//   mpirun -np 2 resume_matrix save <folder>
//   mpirun -np 3 resume_matrix resume <folder>
//   resume_matrix read <folder>
//
// A resumed training must have the bits that were saved, and go on like the one that saved. The
// last reads the parameters in one process, without MPI.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <mpi.h>
#include <torch/torch.h>

#include "checkpoint/safetensors.hpp"
#include "kolo/kolo.hpp"
#include "train/tensors/tensor_memory.hpp"
#include "train/training_checkpoints.hpp"

namespace kolo::test::resume_matrix {

namespace fs = std::filesystem;
using namespace torch::optim;

constexpr std::int64_t kRows = 6;  // of a batch, over all ranks
constexpr std::int64_t kColumns = 5;

struct Precision {
  const char* name;
  at::ScalarType dtype;
  bool has_masters;
  double tolerance;  // see difference(): other numbers of ranks sum in another order
};
constexpr Precision kPrecisions[] = {{"float", at::kFloat, false, 1e-4},
                                     {"double", at::kDouble, false, 1e-5},
                                     {"float16", at::kHalf, false, 0.1},
                                     {"bfloat16", at::kBFloat16, false, 0.4},
                                     {"masters", at::kBFloat16, true, 0.1}};

/// Without shared memory `Full` gathers parameters, which masters change and another type does not.
std::vector<Precision> precisions() {
  const char* const variant = std::getenv("KOLO_TEST_VARIANT");
  if (variant != nullptr && variant == std::string_view("messages"))
    return {kPrecisions[0], kPrecisions[4]};
  return {std::begin(kPrecisions), std::end(kPrecisions)};
}

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

  const Precision precision;
  Odd model;
  std::unique_ptr<torch::optim::Optimizer> inner;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

/// All tensors of a full state but those of `none`: sharded, no rank steps it or has its state.
std::map<std::string, at::Tensor> read(const fs::path& file) {
  const checkpoints::SafetensorsReader reader(file);
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, place] : reader.tensors()) {
    at::Tensor values = torch::empty(place.shape, train::scalar_type_of(*place.dtype));
    reader.read(name, *place.dtype, 0,
                {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
    if (!name.ends_with("none")) all[name] = values;
  }
  return all;
}

/// The first difference; empty if there is none. A tensor may miss what is expected by `tolerance`
/// of the way from `start` to there.
std::string difference(const fs::path& expected, const fs::path& got, const fs::path& start,
                       double tolerance) {
  const auto a = read(expected);
  const auto b = read(got);
  const auto before = read(start);
  for (const auto& [name, tensor] : a) {
    if (!b.contains(name)) return "no " + name;
  }
  for (const auto& [name, tensor] : b) {
    if (!a.contains(name)) return "an unexpected " + name;
    const at::Tensor& other = a.at(name);
    if (tensor.sizes() != other.sizes() || tensor.scalar_type() != other.scalar_type()) {
      return name + " of another shape or type";
    }
    if (tensor.numel() == 0) continue;
    const double allowed = tolerance * largest_difference(other, before.at(name));
    if (!(largest_difference(tensor, other) <= allowed)) return "other values of " + name;
  }
  return {};
}

std::string join(const Precision& precision, Shard mode, const OptimizerCase& which) {
  return std::string(precision.name) + "-" + std::string(name_of(mode)) + "-" + which.name;
}

/// Counts cases and prints those that are wrong.
class Cases {
 public:
  explicit Cases(bool prints) : prints_(prints) {}

  /// Runs a case, whose problem `work` returns; empty: it is right.
  template <class Work>
  void check(const std::string& what, const Work& work) {
    ++tried_;
    std::string problem;
    try {
      problem = work();
    } catch (const c10::Error& error) {
      problem = error.what_without_backtrace();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (problem.empty()) return;
    ++wrong_;
    if (prints_) std::cout << what << ": " << problem << std::endl;
  }
  /// Returns whether all were right.
  bool finish(const std::string& how) const {
    if (prints_) std::cout << tried_ << " " << how << ", " << wrong_ << " wrong" << std::endl;
    return wrong_ == 0;
  }

 private:
  const bool prints_;
  int tried_ = 0;
  int wrong_ = 0;
};

std::vector<Shard> modes_of(const Precision& precision) {
  return precision.has_masters ? sharded_modes() : all_modes();
}

/// Loads parameters and buffers alone into a model of zeros. Returns the first that is not as in
/// the full state `expected`.
std::string read_parameters(const Precision& precision, const OptimizerCase& which,
                            const fs::path& path, const fs::path& expected) {
  Odd model(precision.dtype, takes_complex(which));
  std::map<std::string, at::Tensor> own;
  for (const auto& [name, tensor] : model.named_parameters().pairs()) own[name] = tensor.detach();
  for (const auto& [name, tensor] : model.named_buffers().pairs()) own[name] = tensor;
  for (const auto& [name, tensor] : own) train::copy_values(tensor, torch::zeros_like(tensor));
  const Loaded loaded = load_parameters(model, path);
  if (loaded.loaded.size() != own.size() - 1) return "not all were loaded";  // one has two names
  std::size_t compared = 0;
  for (const auto& [name, tensor] : read(expected)) {
    if (!own.contains(name)) continue;  // of the optimizer
    if (!torch::equal(own.at(name), tensor)) return "other values of " + name;
    ++compared;
  }
  constexpr std::size_t kNone = 2;  // read() leaves them out
  if (compared != loaded.loaded.size() - kNone) return "not all were compared";
  return {};
}

bool read_all(const fs::path& folder) {
  Cases cases(true);
  for (const Precision& precision : precisions()) {
    for (const Shard saved : modes_of(precision)) {
      for (const OptimizerCase& which : optimizers()) {
        const fs::path place = folder / join(precision, saved, which);
        const fs::path file = place / "saved.safetensors";
        for (const fs::path& path : {place, file}) {
          cases.check(path.string(), [&] { return read_parameters(precision, which, path, file); });
        }
      }
    }
  }
  int has_started = 0;
  MPI_Initialized(&has_started);
  cases.check("MPI", [&] { return std::string(has_started == 0 ? "" : "it has been started"); });
  return cases.finish("read alone");
}

/// Runs all cases; returns whether all are right.
bool run(bool saves, const fs::path& folder) {
  Cases cases(Runtime::current().rank() == 0);
  for (const Precision& precision : precisions()) {
    const std::vector<Shard> modes = modes_of(precision);
    for (const Shard saved : modes) {
      for (const OptimizerCase& which : optimizers()) {
        const fs::path place = folder / join(precision, saved, which);
        const fs::path now = place / "saved.safetensors";
        const fs::path later = place / "later.safetensors";
        if (saves) {
          cases.check(place.filename(), [&] {
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
          const std::string what =
              join(precision, saved, which) + " loaded with " + std::string(name_of(mode));
          cases.check(what, [&] {
            Program program(which, precision, mode);
            program.optimizer->load(place);
            program.optimizer->save_full_state(place / "loaded.safetensors");
            std::string problem = difference(now, place / "loaded.safetensors", now, 0.0);
            program.run(2, 4);
            program.optimizer->save_full_state(place / "went_on.safetensors");
            if (!problem.empty()) return "after load(): " + problem;
            problem = difference(later, place / "went_on.safetensors", now, precision.tolerance);
            return problem.empty() ? problem : "after two steps: " + problem;
          });
        }
      }
    }
  }
  return cases.finish((saves ? "saved by " : "resumed by ") +
                      std::to_string(Runtime::current().size()) + " ranks");
}

}  // namespace kolo::test::resume_matrix

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string what = arguments.empty() ? "" : arguments[0];
  if (arguments.size() != 2 || (what != "save" && what != "resume" && what != "read")) {
    std::cerr << "resume_matrix save|resume|read <folder>\n";
    return 2;
  }
  if (what == "read") return kolo::test::resume_matrix::read_all(arguments[1]) ? 0 : 1;
  const kolo::Runtime runtime;
  return kolo::test::resume_matrix::run(what == "save", arguments[1]) ? 0 : 1;
}
