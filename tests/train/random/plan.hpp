#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "kolo/config.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "support/random.hpp"
#include "train/random/model.hpp"

/// Random training programs: everything that is drawn before the first call.
namespace kolo::random_training {

enum class Mode { None, Optimizer, Gradients, FullCopy, FullGathered };
const char* name_of(Mode mode);
Mode mode_named(const std::string& name);
Shard shard_of(Mode mode);
inline bool is_sharded(Mode mode) { return mode != Mode::None; }
inline bool is_full(Mode mode) { return mode >= Mode::FullCopy; }

enum class Class { Sgd, Adam, AdamW, RmsProp, Adagrad, Muon };
const char* name_of(Class which);

/// How the parameters are divided among two optimizers.
enum class Split { None, ByNetwork, ByLayer };

/// A group of an optimizer.
struct Group {
  std::vector<std::string> members;
  std::shared_ptr<torch::optim::OptimizerOptions> options;
};
using Groups = std::vector<Group>;

/// What a program has built when a part of it begins.
struct Structure {
  Layers present = 0;
  std::vector<std::string> frozen;
  std::vector<Groups> groups;  ///< of each optimizer
  std::vector<double> buffers;
};

/// The world of a part of the program, and how its optimizers are wrapped. The next part resumes
/// from the checkpoint of the one before.
struct Setup {
  Mode mode = Mode::None;
  int ranks = 2;
  int nodes = 1;
  bool has_shared_memory = true;
  std::size_t bucket_bytes = 0;
  int passes = 1;  ///< backward_passes_per_step
  bool accumulates_reduced = false;
  bool sums = false;  ///< ReduceOp::Sum
  double predivide = 1.0;
  bool divides_by_active = false;
  bool reads_in_flight = false;
  bool is_fused = false;
  bool has_unit_policy = false;
  bool reshards = true;
  bool has_node_scope = false;
  bool owns_optimizer = false;
  bool scales = false;
  int accumulation = 1;           ///< gradient_accumulation_steps of an Accelerator
  bool has_float_default = true;  ///< the default dtype is float32, not float64

  DistributedOptimizerOptions options() const;
  std::string text() const;
  /// Whether the end of the last pass submits all buckets.
  bool submits_at_end() const { return mode == Mode::Gradients || mode == Mode::FullCopy; }
};

struct Plan {
  std::uint64_t seed = 0;
  ModelPlan model;
  std::vector<Class> classes;  ///< of each optimizer
  Split split = Split::None;
  Structure structure;  ///< at the beginning
  std::vector<Setup> parts;
  bool is_accelerated = false;  ///< an Accelerator runs the steps

  int optimizers() const { return static_cast<int>(classes.size()); }
  int optimizer_of(int layer) const;
  std::string text() const;
};

Plan draw_plan(std::uint64_t seed, Mode mode, int ranks);

/// An optimizer over these groups of the model.
std::unique_ptr<torch::optim::Optimizer> make_plain(Class which, const Groups& groups,
                                                    const Model& model);
Model make_model(const ModelPlan& plan, const Structure& structure, double shift);

}  // namespace kolo::random_training
