#include "train/random/plan.hpp"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "kolo/extras/muon.hpp"
#include "support/random.hpp"

namespace kolo::random_training {
namespace {

using simulator::Random;

constexpr const char* kModes[] = {"none", "optimizer", "gradients", "copy", "gathered"};
constexpr const char* kClasses[] = {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Muon"};
constexpr const char* kKinds[] = {"plain", "tied", "scalar", "empty", "complex", "unused"};

/// Of a group. `has_more`: momentum, or amsgrad, which groups of an optimizer have in common, since
/// state of other fields belongs to it. eps 1e-4: a gradient that is zero in theory is rounding
/// noise, which Adam would amplify.
std::shared_ptr<torch::optim::OptimizerOptions> draw_options(Random& random, Class which,
                                                             bool has_more) {
  using namespace torch::optim;
  const double rate = 0.001 * random.between(1, 5);
  const double decay = random.one_in(3) ? 0.01 : 0.0;
  switch (which) {
    case Class::Sgd:
      return std::make_shared<SGDOptions>(SGDOptions(rate)
                                              .momentum(has_more ? 0.9 : 0.0)
                                              .nesterov(has_more && random.one_in(2))
                                              .weight_decay(decay));
    case Class::Adam:
      return std::make_shared<AdamOptions>(
          AdamOptions(rate).eps(1e-4).weight_decay(decay).amsgrad(has_more));
    case Class::AdamW:
      return std::make_shared<AdamWOptions>(
          AdamWOptions(rate).eps(1e-4).weight_decay(decay).amsgrad(has_more));
    case Class::RmsProp:
      return std::make_shared<RMSpropOptions>(
          RMSpropOptions(rate).eps(1e-4).weight_decay(decay).momentum(has_more ? 0.5 : 0.0));
    case Class::Adagrad:
      return std::make_shared<AdagradOptions>(AdagradOptions(rate).eps(1e-4).weight_decay(decay));
    case Class::Muon:
      return std::make_shared<MuonOptions>(
          MuonOptions(rate).eps(1e-4).weight_decay(decay).orthogonalizes(has_more));
  }
  return nullptr;
}

ModelPlan draw_model(Random& random) {
  ModelPlan plan;
  plan.networks = random.one_in(3) ? 2 : 1;
  const int layers = random.between(3, 6);
  for (int i = 0; i < layers; ++i) {
    LayerPlan layer;
    layer.network = i < plan.networks ? i : random.between(0, plan.networks - 1);
    // The first two are plain, so that each optimizer has one.
    if (i >= 2) layer.kind = static_cast<LayerKind>(random.between(0, 5));
    if (i >= 2 && random.one_in(4)) layer.kind = LayerKind::Plain;
    if (layer.kind == LayerKind::Tied) {
      layer.tied_to = layer.network == 0 || plan.networks == 1 ? 0 : 1;
    }
    layer.is_late = i >= 2 && random.one_in(3);
    plan.layers.push_back(layer);
  }
  return plan;
}

/// LibTorch's adaptive classes divide by roots of complex numbers.
bool has_complex(const ModelPlan& model) {
  return std::ranges::any_of(
      model.layers, [](const LayerPlan& layer) { return layer.kind == LayerKind::Complex; });
}

Structure draw_structure(Random& random, const Plan& plan) {
  Structure structure;
  for (int i = 0; i < plan.model.count(); ++i) {
    if (!plan.model.layer(i).is_late) structure.present |= Layers{1} << i;
  }
  const Model model(plan.model, structure.present, 0.0);
  for (int o = 0; o < plan.optimizers(); ++o) {
    Groups groups(static_cast<std::size_t>(random.between(1, 2)));
    const bool has_more = random.one_in(2);
    for (Group& group : groups) {
      group.options = draw_options(random, plan.classes[static_cast<std::size_t>(o)], has_more);
    }
    for (int i = 0; i < plan.model.count(); ++i) {
      if (!has(structure.present, i) || plan.optimizer_of(i) != o) continue;
      const bool is_frozen = i >= 2 && random.one_in(5);
      std::size_t place =
          static_cast<std::size_t>(random.below(static_cast<std::int64_t>(groups.size())));
      for (const Parameter& each : model.of_layer(i)) {
        groups[place].members.push_back(each.first);
        place = (place + 1) % groups.size();
        if (is_frozen) structure.frozen.push_back(each.first);
      }
    }
    structure.groups.push_back(std::move(groups));
  }
  return structure;
}

void draw_options(Random& random, const Plan& plan, Setup& setup) {
  setup.bucket_bytes = random.one_in(4) ? 0 : static_cast<std::size_t>(random.between(1, 6)) * 64;
  setup.passes = random.one_in(3) ? random.between(2, 3) : 1;
  const bool shards_gradients = setup.mode >= Mode::Gradients;
  setup.accumulates_reduced = shards_gradients && random.one_in(3);
  setup.sums = random.one_in(4);
  if (!setup.sums && random.one_in(4)) setup.predivide = 2.0;
  setup.divides_by_active = random.one_in(3);
  setup.reads_in_flight = random.one_in(4);
  const auto has_fused = [](Class which) { return which <= Class::AdamW; };
  setup.is_fused =
      std::ranges::all_of(plan.classes, has_fused) && !has_complex(plan.model) && random.one_in(4);
  setup.has_unit_policy = setup.mode == Mode::FullGathered && random.one_in(2);
  setup.reshards = !random.one_in(3);
  setup.owns_optimizer = random.one_in(3);
  setup.scales = plan.seed % 3 == 0;
  setup.has_float_default = !random.one_in(3);
  if (!plan.is_accelerated) return;
  setup.accumulation = std::exchange(setup.passes, 1);
  setup.accumulates_reduced = setup.owns_optimizer = false;
}

/// The world of threads, whose nodes have no memory in common.
void draw_world(Random& random, Setup& setup) {
  setup.ranks = random.one_in(5) ? 4 : random.between(1, 3);
  if (setup.mode == Mode::FullGathered && setup.ranks == 1) setup.ranks = 2;
  const bool is_gathered = setup.mode == Mode::FullGathered;
  setup.nodes = is_gathered || random.one_in(4) ? setup.ranks : 1;
  if (!is_gathered && setup.ranks == 4 && random.one_in(2)) setup.nodes = 2;
  setup.has_shared_memory = !random.one_in(4);
  setup.has_node_scope = is_sharded(setup.mode) && !is_gathered && random.one_in(4);
}

}  // namespace

const char* name_of(Mode mode) { return kModes[static_cast<int>(mode)]; }
const char* name_of(Class which) { return kClasses[static_cast<int>(which)]; }

Mode mode_named(const std::string& name) {
  for (const Mode mode :
       {Mode::None, Mode::Optimizer, Mode::Gradients, Mode::FullCopy, Mode::FullGathered}) {
    if (name == name_of(mode)) return mode;
  }
  throw std::invalid_argument("no mode " + name);
}

Shard shard_of(Mode mode) {
  switch (mode) {
    case Mode::None: return Shard::None;
    case Mode::Optimizer: return Shard::Optimizer;
    case Mode::Gradients: return Shard::Gradients;
    case Mode::FullCopy:
    case Mode::FullGathered: break;
  }
  return Shard::Full;
}

DistributedOptimizerOptions Setup::options() const {
  DistributedOptimizerOptions options;
  options.shard = shard_of(mode);
  options.bucket_bytes = bucket_bytes;
  options.backward_passes_per_step = passes;
  if (accumulates_reduced) options.accumulation = Accumulation::Reduced;
  if (sums) options.op = ReduceOp::Sum;
  options.gradient_predivide_factor = predivide;
  if (divides_by_active) options.join_divisor = JoinDivisor::Active;
  options.reads_in_flight = reads_in_flight;
  options.fused = is_fused;
  if (has_unit_policy) options.unit_policy = modules_named("layer*");
  options.reshard_after_forward = reshards;
  if (has_node_scope) options.shard_scope = ShardScope::Node;
  return options;
}

std::string Setup::text() const {
  std::ostringstream text;
  text << ranks << " ranks on " << nodes << " nodes, shard = " << name_of(mode);
  if (!has_shared_memory) text << ", no shared memory";
  if (bucket_bytes > 0) text << ", bucket_bytes = " << bucket_bytes;
  if (passes > 1) text << ", backward_passes_per_step = " << passes;
  if (accumulates_reduced) text << ", Accumulation::Reduced";
  if (sums) text << ", ReduceOp::Sum";
  if (predivide != 1.0) text << ", gradient_predivide_factor = " << predivide;
  if (divides_by_active) text << ", JoinDivisor::Active";
  if (reads_in_flight) text << ", reads_in_flight";
  if (is_fused) text << ", fused";
  if (has_unit_policy) text << ", unit_policy";
  if (!reshards) text << ", no reshard_after_forward";
  if (has_node_scope) text << ", ShardScope::Node";
  if (owns_optimizer) text << ", owns its optimizer";
  if (accumulation > 1) text << ", gradient_accumulation_steps = " << accumulation;
  if (scales) text << ", GradScaler";
  if (!has_float_default) text << ", default dtype float64";
  return text.str() + "\n";
}

int Plan::optimizer_of(int layer) const {
  if (split == Split::None) return 0;
  const LayerPlan& plan = model.layer(layer);
  return split == Split::ByNetwork ? plan.network : layer % 2;
}

std::string Plan::text() const {
  std::ostringstream text;
  for (int i = 0; i < model.count(); ++i) {
    const LayerPlan& layer = model.layer(i);
    text << "layer" << i << ": " << kKinds[static_cast<int>(layer.kind)];
    if (layer.tied_to >= 0) text << " to layer" << layer.tied_to;
    text << " of network " << layer.network << (layer.is_late ? ", registered late" : "") << "\n";
  }
  for (const std::string& name : structure.frozen) text << name << " is frozen\n";
  for (int o = 0; o < optimizers(); ++o) {
    const auto index = static_cast<std::size_t>(o);
    text << "optimizer " << o << ": " << name_of(classes[index]);
    for (const Group& group : structure.groups[index]) {
      text << " {";
      for (const std::string& name : group.members) text << " " << name;
      text << " }";
    }
    text << "\n";
  }
  if (is_accelerated) text << "an Accelerator runs the steps\n";
  return text.str();
}

Plan draw_plan(std::uint64_t seed, Mode mode, int ranks) {
  Random random(seed);
  Plan plan;
  plan.seed = seed;
  plan.model = draw_model(random);
  if (random.one_in(3)) plan.split = plan.model.networks == 2 ? Split::ByNetwork : Split::ByLayer;
  const int optimizers = plan.split == Split::None ? 1 : 2;
  for (int o = 0; o < optimizers; ++o) {
    plan.classes.push_back(has_complex(plan.model) ? Class::Sgd
                                                   : static_cast<Class>(random.between(0, 4)));
    if (seed % 7 == 5 && !has_complex(plan.model)) plan.classes.back() = Class::Muon;
  }
  plan.is_accelerated = plan.model.networks == 1 && optimizers == 1 && random.one_in(3);
  plan.structure = draw_structure(random, plan);
  const int parts = random.one_in(3) ? 2 : 1;
  for (int i = 0; i < parts; ++i) {
    Setup setup;
    setup.mode = mode;
    // A later part resumes elsewhere. Processes keep their number.
    if (i > 0) {
      const bool are_threads = mode != Mode::FullCopy;
      const int drawn = random.between(0, are_threads ? 3 : 4);
      setup.mode = are_threads && drawn == 3 ? Mode::FullGathered : static_cast<Mode>(drawn);
    }
    if (mode == Mode::FullCopy && setup.mode == Mode::FullGathered) setup.mode = Mode::None;
    if (mode == Mode::FullCopy) {
      setup.ranks = ranks;
    } else {
      draw_world(random, setup);
    }
    draw_options(random, plan, setup);
    plan.parts.push_back(setup);
  }
  return plan;
}

std::unique_ptr<torch::optim::Optimizer> make_plain(Class which, const Groups& groups,
                                                    const Model& model) {
  using namespace torch::optim;
  std::vector<OptimizerParamGroup> own;
  for (const Group& group : groups) {
    std::vector<at::Tensor> members;
    for (const std::string& name : group.members) members.push_back(model.named(name));
    own.emplace_back(std::move(members), group.options->clone());
  }
  const auto make =
      [&]<class Optimizer, class Options>() -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<Optimizer>(own, static_cast<const Options&>(*groups[0].options));
  };
  switch (which) {
    case Class::Sgd: return make.operator()<SGD, SGDOptions>();
    case Class::Adam: return make.operator()<Adam, AdamOptions>();
    case Class::AdamW: return make.operator()<AdamW, AdamWOptions>();
    case Class::RmsProp: return make.operator()<RMSprop, RMSpropOptions>();
    case Class::Adagrad: return make.operator()<Adagrad, AdagradOptions>();
    case Class::Muon: return make.operator()<Muon, MuonOptions>();
  }
  return nullptr;
}

Model make_model(const ModelPlan& plan, const Structure& structure, double shift) {
  Model model(plan, structure.present, shift);
  for (const std::string& name : structure.frozen) model.named(name).requires_grad_(false);
  for (const double value : structure.buffers) model.add_buffer(value);
  return model;
}

}  // namespace kolo::random_training
