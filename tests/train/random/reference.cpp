#include "train/random/reference.hpp"

#include <algorithm>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace kolo::random_training {
namespace {

using torch::optim::OptimizerParamGroup;

/// Creates the state that LibTorch's Adagrad expects of all its parameters.
void complete_state(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) == nullptr) return;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (state != nullptr) continue;
      auto initial = std::make_unique<torch::optim::AdagradParamState>();
      initial->step(0).sum(at::zeros_like(parameter));
      state = std::move(initial);
    }
  }
}

std::string saved(torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

void load(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.state().clear();
  optimizer.load(archive);
}

template <class Options>
double* decay_in(torch::optim::OptimizerOptions& options) {
  auto* const own = dynamic_cast<Options*>(&options);
  return own != nullptr ? &own->weight_decay() : nullptr;
}

double& decay_of(torch::optim::OptimizerOptions& options) {
  using namespace torch::optim;
  for (double* const decay : {decay_in<SGDOptions>(options), decay_in<AdamOptions>(options),
                              decay_in<AdamWOptions>(options), decay_in<RMSpropOptions>(options),
                              decay_in<AdagradOptions>(options), decay_in<MuonOptions>(options)}) {
    if (decay != nullptr) return *decay;
  }
  throw std::logic_error("options of an unknown class");
}

}  // namespace

void set_option(torch::optim::OptimizerOptions& options, Option option, double value) {
  if (option == Option::Rate) return options.set_lr(value);
  decay_of(options) = value;
}

std::vector<bool> have_decay(torch::optim::Optimizer& optimizer) {
  std::vector<bool> have;
  for (OptimizerParamGroup& group : optimizer.param_groups()) {
    have.push_back(decay_of(group.options()) != 0.0);
  }
  return have;
}

std::map<std::string, c10::IValue> fields_of(const torch::optim::OptimizerParamState& state) {
  torch::serialize::OutputArchive written;
  state.serialize(written);
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  std::map<std::string, c10::IValue> fields;
  for (const std::string& key : archive.keys()) archive.read(key, fields[key]);
  return fields;
}

Reference::Reference(const Plan& plan)
    : plan_(plan), model_(make_model(plan.model, plan.structure, 0.0)) {
  for (int o = 0; o < plan.optimizers(); ++o) {
    const auto i = static_cast<std::size_t>(o);
    trained_.push_back({.plain = make_plain(plan.classes[i], plan.structure.groups[i], model_)});
  }
  const GradScalerOptions options = scaler_options(true);
  scaler_ = {options.init_scale, options.growth_factor, options.backoff_factor,
             options.growth_interval, 0};
}

void Reference::begin_part(const Setup& setup) {
  setup_ = setup;
  gradients_.assign(kMaxRanks, {});
  has_scaled_ = scaler_overflowed_ = false;
  for (int o = 0; o < count(); ++o) {
    Trained& trained = at(o);
    restart(trained);
    trained.is_broken = trained.is_unscaled = trained.has_stepped = false;
    trained.has_overflow = false;
    trained.zero_grads.assign(kMaxRanks, 0.0);
    trained.option_sides.clear();
    trained.reduced.clear();
    match(o);
    trained.has_layout = is_full(setup.mode);
    trained.is_layout_known = true;
  }
}

Structure Reference::structure() const {
  Structure structure{model_.present(), {}, {}, buffers_};
  for (const Parameter& each : model_.parameters()) {
    if (!each.second.requires_grad()) structure.frozen.push_back(each.first);
  }
  for (const Trained& trained : trained_) {
    Groups& groups = structure.groups.emplace_back();
    for (const OptimizerParamGroup& group : trained.plain->param_groups()) {
      Group& own = groups.emplace_back();
      own.options = group.options().clone();
      for (const at::Tensor& tensor : group.params()) own.members.push_back(name_of(tensor));
    }
  }
  return structure;
}

// --- who trains what ---

std::string Reference::name_of(const at::Tensor& tensor) const {
  for (const Parameter& each : model_.parameters()) {
    if (each.second.is_same(tensor)) return each.first;
  }
  throw std::logic_error("a tensor without a name");
}

std::vector<std::string> Reference::members(int optimizer) const {
  std::vector<std::string> names;
  for (const OptimizerParamGroup& group : at(optimizer).plain->param_groups()) {
    for (const at::Tensor& tensor : group.params()) names.push_back(name_of(tensor));
  }
  return names;
}

std::set<std::string> Reference::trained_by(int optimizer) const {
  std::set<std::string> names = at(optimizer).reduced;
  for (const std::string& name : members(optimizer)) names.insert(name);
  return names;
}

/// Parameters that get gradients, and that its next collective call adds.
std::set<std::string> Reference::new_in(int optimizer) const {
  std::set<std::string> names;
  for (const std::string& name : members(optimizer)) {
    if (at(optimizer).reduced.contains(name)) continue;
    if (model_.named(name).requires_grad()) names.insert(name);
  }
  return names;
}

std::set<std::string> Reference::used_by(int layer) const {
  std::set<std::string> names;
  const LayerPlan& plan = plan_.model.layer(layer);
  if (plan.kind == LayerKind::Unused) return names;
  for (const Parameter& each : model_.of_layer(layer)) names.insert(each.first);
  if (plan.tied_to >= 0) names.insert("layer" + std::to_string(plan.tied_to) + ".weight");
  return names;
}

/// Parameters of the optimizer that get gradients in the pass on a rank.
std::set<std::string> Reference::touched(int optimizer, const Pass& pass, int rank) const {
  std::set<std::string> names;
  if (pass.of(rank).rows == 0) return names;
  const std::set<std::string> own = trained_by(optimizer);
  for (int i = 0; i < plan_.model.count(); ++i) {
    if (!has(model_.present() & pass.of(rank).used, i)) continue;
    if (!has(pass.networks, plan_.model.layer(i).network)) continue;
    for (const std::string& name : used_by(i)) {
      if (own.contains(name) && model_.named(name).requires_grad()) names.insert(name);
    }
  }
  return names;
}

std::vector<int> Reference::active() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < setup_.ranks; ++rank) {
    if (!joined_.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

bool Reference::are_all_idle() const {
  return std::ranges::all_of(trained_, [](const Trained& trained) { return trained.is_idle(); });
}

bool Reference::has_gradient(int optimizer) const {
  for (const int rank : active()) {
    for (const std::string& name : trained_by(optimizer)) {
      if (of(rank).contains(name)) return true;
    }
  }
  return false;
}

/// How often a gradient has arrived on a rank.
int Reference::arrivals(const Trained& trained, int rank, const std::string& name) {
  const auto& arrived = trained.arrived[static_cast<std::size_t>(rank)];
  const auto found = arrived.find(name);
  return found != arrived.end() ? found->second : 0;
}

bool Reference::have_arrived_alike(const Trained& trained) const {
  const auto first = static_cast<std::size_t>(active().front());
  return std::ranges::all_of(active(), [&](int rank) {
    const auto place = static_cast<std::size_t>(rank);
    return trained.arrived[place] == trained.arrived[first] &&
           trained.arrived_alone[place] == trained.arrived_alone[first];
  });
}

/// Whether a bucket is being reduced on every rank. If not, it may be on some.
bool Reference::is_certainly_in_flight(int optimizer) const {
  const Trained& trained = at(optimizer);
  if (trained.is_synchronized || trained.is_broken || trained.is_zeroed) return false;
  if (trained.passes < setup_.passes) return false;
  if (setup_.submits_at_end() && trained.has_layout) return true;
  return std::ranges::all_of(active(), [&](int rank) {
    return std::ranges::all_of(trained.reduced, [&](const std::string& name) {
      return arrivals(trained, rank, name) == setup_.passes;
    });
  });
}

/// Whether gradients have the scale of the GradScaler.
bool Reference::is_scaled(const Trained& trained) const {
  return setup_.scales && !trained.is_idle() && !trained.are_unscaled;
}

/// Whether all ranks must use the same layers, in the same order.
bool Reference::must_use_alike() const {
  // Passes of several optimizers end in the order of the layers that a rank uses, and wait.
  const bool waits_in_passes = setup_.accumulates_reduced && count() > 1;
  return setup_.mode == Mode::FullGathered || waits_in_passes;
}

// --- backward() ---

std::vector<int> Reference::involved(const Pass& pass) const {
  std::vector<int> optimizers;
  for (int o = 0; o < count(); ++o) {
    const auto touches = [&](int rank) { return !touched(o, pass, rank).empty(); };
    if (std::ranges::any_of(active(), touches)) optimizers.push_back(o);
  }
  return optimizers;
}

/// Passes that a correct program does not make.
std::optional<Expected> Reference::problem_with_shares(const Pass& pass) const {
  if ((pass.networks & ((1U << plan_.model.networks) - 1)) != pass.networks) {
    return Expected::not_made();
  }
  const Share& first = pass.of(active().front());
  for (const int rank : active()) {
    const Share& share = pass.of(rank);
    if (share.rows == 0 && (!pass.is_counted || must_use_alike())) return Expected::not_made();
    // Optimizers whose gradients were dropped wait for other ranks in the first hook of each.
    const bool is_restarting =
        count() > 1 && std::ranges::any_of(trained_, [](const Trained& trained) {
          return trained.is_zeroed || trained.is_synchronized;
        });
    const bool must_be_alike = must_use_alike() || pass.failing >= 0 || is_restarting;
    if (must_be_alike && share.used != first.used) return Expected::not_made();
    for (const int o : involved(pass)) {
      if (share.rows > 0 && touched(o, pass, rank).empty()) return Expected::not_made();
    }
    if (pass.failing < 0) continue;
    const bool is_used = has(share.used & model_.present(), pass.failing) &&
                         has(pass.networks, plan_.model.layer(pass.failing).network) &&
                         plan_.model.layer(pass.failing).kind == LayerKind::Plain &&
                         model_.of_layer(pass.failing).front().second.requires_grad();
    if (!is_used || pass.is_local || share.rows == 0) return Expected::not_made();
  }
  return std::nullopt;
}

std::optional<Expected> Reference::problem_with(const Pass& pass, int optimizer) const {
  const Trained& trained = at(optimizer);
  // What it adds to parameters that are not reduced yet may stay.
  if (pass.failing >= 0 && !new_in(optimizer).empty()) return Expected::not_made();
  const bool is_empty = trained.is_synchronized && !has_gradient(optimizer);
  if (trained.is_zeroed || is_empty) {  // the step begins anew, unless some gradients are left
    for (const int rank : active()) {
      for (const std::string& name : trained.reduced) {
        if (of(rank).contains(name)) return Expected::not_made();
      }
    }
    return std::nullopt;
  }
  if (trained.is_broken || trained.has_overflow) return Expected::not_made();
  const auto is_surplus_on = [&](int rank) {
    return std::ranges::any_of(touched(optimizer, pass, rank), [&](const std::string& name) {
      return arrivals(trained, rank, name) == setup_.passes;
    });
  };
  const bool is_plain = count() == 1 && pass.failing < 0 && pass.overflowing < 0 &&
                        !pass.is_counted && !pass.is_local && new_in(optimizer).empty();
  if (trained.is_synchronized) {
    if (!is_plain) return Expected::not_made();
    return Expected::refused({"got a gradient after synchronize()"});
  }
  if (trained.passes >= setup_.passes) {
    if (!is_plain || !std::ranges::all_of(active(), is_surplus_on)) return Expected::not_made();
    return Expected::refused({"got more than backward_passes_per_step"});
  }
  if (trained.has_begun() && trained.has_counted != pass.is_counted) return Expected::not_made();
  const bool has_kept = !trained.has_begun() && has_gradient(optimizer);
  const bool needs_none = pass.is_counted || setup_.sums || setup_.scales;
  if (has_kept && needs_none) return Expected::not_made();
  return std::nullopt;
}

std::optional<Expected> Reference::problem_with(const Pass& pass) const {
  if (auto problem = problem_with_shares(pass)) return problem;
  const std::vector<int> optimizers = involved(pass);
  if (optimizers.empty()) return Expected::not_made();
  if (pass.overflowing >= 0) {
    const bool is_possible =
        setup_.scales && !joined_.contains(pass.overflowing) && pass.of(pass.overflowing).rows > 0;
    if (!is_possible) return Expected::not_made();
  }
  if (pass.is_counted && optimizers.size() > 1) return Expected::not_made();
  for (const int o : optimizers) {
    if (auto problem = problem_with(pass, o)) return problem;
  }
  return std::nullopt;
}

/// Of this rank's batch; `as_rank` gets them.
void Reference::add_gradients(const Pass& pass, int rank, int as_rank) {
  const Share& share = pass.of(rank);
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  for (const int o : involved(pass)) {
    for (const std::string& name : touched(o, pass, rank)) {
      names.push_back(name);
      tensors.push_back(model_.named(name));
    }
  }
  if (names.empty()) return;
  at::Tensor loss = model_.loss(rows_of(pass.batch, rank, share.rows), pass.networks, share.used);
  if (!pass.is_counted) loss = loss * (pass.weight / share.rows);
  if (pass.overflowing == rank) loss = loss * std::numeric_limits<double>::infinity();
  const auto gradients = torch::autograd::grad({loss}, tensors, {}, {}, false, true);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!gradients[i].defined()) continue;
    at::Tensor& sum = of(as_rank)[names[i]];
    sum = sum.defined() ? sum + gradients[i] : gradients[i].clone();
  }
}

Expected Reference::backward(const Pass& pass) {
  const std::vector<int> optimizers = involved(pass);
  if (const auto problem = problem_with(pass)) {
    const bool has_begun_to_add =
        problem->end == Expected::End::Throws && !at(optimizers.front()).is_synchronized;
    if (has_begun_to_add) at(optimizers.front()).is_broken = true;
    return *problem;
  }
  for (const int o : optimizers) {
    Trained& trained = at(o);
    // What the program has dropped may be reduced and discarded now, or not.
    const bool may_lay_out = trained.is_zeroed && (trained.passes > 0 || trained.is_broken);
    if (may_lay_out && !trained.has_layout) trained.is_layout_known = false;
    if (trained.is_zeroed || trained.is_synchronized) restart(trained);
    if (pass.failing < 0) continue;
    trained.is_broken = true;
    trained.has_counted = pass.is_counted;
  }
  if (pass.failing >= 0) {
    has_scaled_ = true;
    return {.end = Expected::End::Throws, .words = {"a bad batch"}, .is_of_program = true};
  }
  has_scaled_ = true;
  for (const int rank : active()) add_gradients(pass, rank, rank);
  for (const int o : optimizers) {
    Trained& trained = at(o);
    trained.has_counted = pass.is_counted;
    trained.has_overflow = pass.overflowing >= 0;
    for (const int rank : active()) {
      if (pass.is_counted) trained.count += pass.of(rank).rows;
      const auto place = static_cast<std::size_t>(rank);
      for (const std::string& name : touched(o, pass, rank)) {
        if (!trained.reduced.contains(name)) continue;
        if (pass.is_local) {
          trained.arrived_alone[place].insert(name);
        } else {
          ++trained.arrived[place][name];
        }
      }
    }
    pass.is_local ? trained.has_local = true : ++trained.passes != 0;
  }
  return {};
}

// --- reduced gradients ---

/// Returns, if the gradients of all ranks can be reduced now.
Expected Reference::problem_with_reducing(int optimizer) const {
  const Trained& trained = at(optimizer);
  if (trained.is_broken) return Expected::not_made();
  if (!joined_.empty() && !new_in(optimizer).empty()) return Expected::not_made();
  if (trained.is_synchronized) return {};
  // Ranks that do not use a layer do not know that others have dropped its gradient.
  if (trained.is_zeroed && !have_arrived_alike(trained)) return Expected::not_made();
  const bool has_kept = !trained.has_begun() && has_gradient(optimizer);
  if (has_kept && (setup_.sums || setup_.scales)) return Expected::not_made();
  for (const std::string& name : members(optimizer)) {
    const bool is_reduced = trained.reduced.contains(name) || model_.named(name).requires_grad();
    const auto has_it = [&](int rank) { return of(rank).contains(name); };
    if (!is_reduced && std::ranges::any_of(active(), has_it)) return Expected::not_made();
  }
  return {};
}

/// The reduced gradient; undefined if no rank has one.
at::Tensor Reference::sum_of(const Trained& trained, const std::string& name) const {
  at::Tensor sum;
  for (const int rank : active()) {
    const auto found = of(rank).find(name);
    if (found == of(rank).end()) continue;
    sum = sum.defined() ? sum + found->second : found->second.clone();
  }
  if (!sum.defined()) return sum;
  if (trained.has_counted) {
    return trained.count == 0 ? at::Tensor() : sum / static_cast<double>(trained.count);
  }
  if (setup_.sums) return sum;
  const auto ranks =
      setup_.divides_by_active ? active().size() : static_cast<std::size_t>(setup_.ranks);
  return sum / static_cast<double>(ranks);
}

void Reference::reduce(int optimizer) {
  Trained& trained = at(optimizer);
  if (trained.is_synchronized) return;  // what is new waits for the next step
  match(optimizer);
  for (const std::string& name : trained.reduced) {
    const at::Tensor sum = sum_of(trained, name);
    for (const int rank : active()) {
      if (sum.defined()) {
        of(rank)[name] = sum.clone();
      } else {
        of(rank).erase(name);
      }
    }
  }
  trained.is_synchronized = true;
  trained.has_layout = trained.is_layout_known = true;
}

/// Groups of both sides are alike from now on, and new parameters are reduced.
void Reference::match(int optimizer) {
  for (const std::string& name : new_in(optimizer)) at(optimizer).reduced.insert(name);
  at(optimizer).members_side.reset();
  at(optimizer).unmatched.clear();
}

Expected Reference::synchronize(int optimizer) {
  Expected expected = problem_with_reducing(optimizer);
  if (expected.returns()) reduce(optimizer);
  return expected;
}

Expected Reference::visit(int optimizer, int layer, bool drops) {
  Expected expected = problem_with_reducing(optimizer);
  if (!expected.returns() || at(optimizer).has_overflow) return Expected::not_made();
  reduce(optimizer);
  if (!joined_.empty() && is_sharded(setup_.mode)) {
    return Expected::refused({"for_each_gradient()", "joined"});
  }
  for (const Parameter& each : model_.of_layer(layer)) {
    if (!at(optimizer).reduced.contains(each.first)) continue;
    for (const int rank : active()) {
      const auto found = of(rank).find(each.first);
      if (found == of(rank).end()) continue;
      if (drops) {
        of(rank).erase(found);
      } else {
        found->second = found->second * 0.5;
      }
    }
  }
  const bool is_whole = !is_sharded(setup_.mode);
  const int visitors = is_whole ? setup_.ranks : setup_.has_node_scope ? setup_.nodes : 1;
  expected.numbers = {static_cast<double>(visitors)};
  return expected;
}

Expected Reference::clip_norm(int optimizer, double max_norm, double norm_type) {
  if (norm_type <= 0.0) return Expected::refused({"clip_grad_norm_", "norm_type", "positive"});
  Expected expected = problem_with_reducing(optimizer);
  const Trained& trained = at(optimizer);
  if (!expected.returns() || trained.has_overflow || is_scaled(trained))
    return Expected::not_made();
  reduce(optimizer);
  std::vector<at::Tensor> norms;
  const Gradients& gradients = of(active().front());
  for (const std::string& name : trained.reduced) {
    const auto found = gradients.find(name);
    if (found == gradients.end() || found->second.numel() == 0) continue;
    norms.push_back(torch::norm(found->second.abs(), norm_type));
  }
  const double norm =
      norms.empty() ? 0.0 : torch::norm(torch::stack(norms), norm_type).item<double>();
  const double factor = std::min(1.0, max_norm / (norm + 1e-6));
  for (const int rank : active()) {
    for (const std::string& name : trained.reduced) {
      if (of(rank).contains(name)) of(rank)[name] = of(rank)[name] * factor;
    }
  }
  expected.numbers = {norm};
  return expected;
}

Expected Reference::clip_value(int optimizer, double max_value) {
  if (max_value < 0.0) return Expected::refused({"clip_grad_value_", "must not be negative"});
  Expected expected = problem_with_reducing(optimizer);
  const Trained& trained = at(optimizer);
  if (!expected.returns() || trained.has_overflow || is_scaled(trained))
    return Expected::not_made();
  reduce(optimizer);
  for (const int rank : active()) {
    for (const std::string& name : trained.reduced) {
      const auto found = of(rank).find(name);
      if (found == of(rank).end()) continue;
      at::Tensor& gradient = found->second;
      if (gradient.is_complex()) {
        torch::view_as_real(gradient).clamp_(-max_value, max_value);
      } else {
        gradient.clamp_(-max_value, max_value);
      }
    }
  }
  return expected;
}

Expected Reference::drop(int layer) {
  for (const Parameter& each : model_.of_layer(layer)) {
    for (Trained& trained : trained_) {
      if (!trained.reduced.contains(each.first)) continue;
      if (trained.is_broken || trained.is_zeroed || trained.has_overflow) {
        return Expected::not_made();
      }
      if (setup_.accumulates_reduced && trained.has_begun() && !trained.is_synchronized) {
        return Expected::not_made();
      }
      if (trained.is_synchronized) continue;
      const int first = active().front();
      for (const int rank : active()) {
        const bool is_alike =
            arrivals(trained, rank, each.first) == arrivals(trained, first, each.first) &&
            of(rank).contains(each.first) == of(first).contains(each.first);
        if (!is_alike) return Expected::not_made();
      }
    }
  }
  if (!has(model_.present(), layer)) return Expected::not_made();
  for (const Parameter& each : model_.of_layer(layer)) {
    for (const int rank : active()) of(rank).erase(each.first);
    for (Trained& trained : trained_) {
      if (trained.passes >= setup_.passes) continue;
      for (auto& arrived : trained.arrived) arrived.erase(each.first);
    }
  }
  return {};
}

// --- the end of a step ---

/// The gradients are gone, or were kept from an earlier step.
void Reference::restart(Trained& trained) {
  trained.passes = 0;
  trained.has_local = trained.has_counted = trained.are_unscaled = false;
  trained.is_synchronized = trained.is_broken = trained.is_zeroed = false;
  trained.arrived.assign(kMaxRanks, {});
  trained.arrived_alone.assign(kMaxRanks, {});
  trained.count = 0;
}

void Reference::clear(const std::set<std::string>& names, bool to_none) {
  for (const int rank : active()) {
    for (const std::string& name : names) {
      const auto found = of(rank).find(name);
      if (found == of(rank).end()) continue;
      if (to_none) {
        of(rank).erase(found);
      } else {
        found->second = at::zeros_like(found->second);
      }
    }
  }
}

void Reference::step_plain(int optimizer) {
  Trained& trained = at(optimizer);
  const Gradients& gradients = of(active().front());
  for (const std::string& name : trained_by(optimizer)) {
    const auto found = gradients.find(name);
    if (found == gradients.end()) continue;
    model_.named(name).mutable_grad() = found->second.clone();
  }
  complete_state(*trained.plain);
  trained.plain->step();
  for (const Parameter& each : model_.parameters()) each.second.mutable_grad().reset();
}

/// Of a step that has updated parameters.
void Reference::end_step(int optimizer) {
  Trained& trained = at(optimizer);
  trained.option_sides.clear();
  trained.members_side.reset();
  trained.unmatched.clear();
  step_plain(optimizer);
  ++trained.steps;
  restart(trained);
  if (is_sharded(setup_.mode)) clear(trained.reduced, true);
}

Expected Reference::step(int optimizer) {
  Trained& trained = at(optimizer);
  Expected expected = problem_with_reducing(optimizer);
  if (!expected.returns()) return expected;
  if (!setup_.scales) {
    if (trained.has_overflow) return Expected::not_made();
    reduce(optimizer);
    end_step(optimizer);
    expected.numbers = {1.0};
    return expected;
  }
  if (!trained.has_begun() && !trained.is_synchronized) return Expected::not_made();
  if (trained.has_stepped) return Expected::refused({"step() a second time since update()"});
  if (!has_gradient(optimizer) && !trained.has_counted) return Expected::not_made();
  // unscale_(), then a batch was skipped: the scaler takes the new gradients for unscaled ones.
  if (trained.is_unscaled && !trained.are_unscaled) return Expected::not_made();
  reduce(optimizer);
  trained.is_unscaled = trained.has_stepped = true;
  expected.numbers = {trained.has_overflow ? 0.0 : 1.0};
  if (!trained.has_overflow) {
    end_step(optimizer);
    return expected;
  }
  scaler_overflowed_ = true;
  restart(trained);
  if (!is_sharded(setup_.mode)) return expected;  // the gradients stay, as in LibTorch
  clear(trained.reduced, true);
  trained.has_overflow = false;
  return expected;
}

Expected Reference::step_with_closure(const Pass& pass) {
  const std::vector<int> optimizers = involved(pass);
  const bool is_possible = are_all_idle() && setup_.passes == 1 && !setup_.scales &&
                           optimizers.size() == 1 && optimizers.front() == 0 && !pass.is_local &&
                           pass.failing < 0 && problem_with_reducing(0).returns();
  if (!is_possible) return Expected::not_made();
  Expected expected = backward(pass);
  if (!expected.returns()) return Expected::not_made();
  for (int rank = 0; rank < setup_.ranks; ++rank) {
    const at::NoGradGuard no_grad;
    const Share& share = pass.of(rank);
    expected.numbers.push_back(
        model_.loss(rows_of(pass.batch, rank, share.rows), pass.networks, share.used)
            .item<double>());
  }
  reduce(0);
  end_step(0);
  return expected;
}

Expected Reference::step_alone(const Pass& pass) {
  const std::vector<int> optimizers = involved(pass);
  const bool is_possible = are_all_idle() && !setup_.scales && joined_.empty() &&
                           optimizers.size() == 1 && optimizers.front() == 0 && pass.is_local &&
                           !pass.is_counted && pass.failing < 0 &&
                           problem_with_reducing(0).returns() && !problem_with(pass) &&
                           (is_sharded(setup_.mode) || new_in(0).empty());
  if (!is_possible) return Expected::not_made();
  for (const int rank : active()) add_gradients(pass, 0, rank);
  at(0).has_local = true;
  if (is_sharded(setup_.mode)) return Expected::refused({"step() under skip_synchronize()"});
  end_step(0);
  return {};
}

Expected Reference::zero(int optimizer, Zeroing by, bool to_none) {
  if (by != Zeroing::Wrapper) {
    // A rank without gradients does not know that others have some.
    const auto is_unnoticed = [&](const Trained& trained) {
      const bool may_continue = trained.has_counted && setup_.passes > 1;
      const bool is_unseen = std::ranges::any_of(active(), [&](int rank) {
        return trained.arrived[static_cast<std::size_t>(rank)].empty();
      });
      return (trained.is_broken && !have_arrived_alike(trained)) || (may_continue && is_unseen);
    };
    if (std::ranges::any_of(trained_, is_unnoticed)) return Expected::not_made();
  }
  if (by == Zeroing::Model) {
    std::set<std::string> names;
    for (const Parameter& each : model_.parameters()) names.insert(each.first);
    if (!to_none && !are_all_idle()) return Expected::not_made();
    for (Trained& trained : trained_) {
      trained.has_overflow = false;
      const bool is_only_local = trained.passes == 0 && !trained.is_synchronized;
      if (!trained.is_broken && is_only_local) {
        restart(trained);
      } else {
        trained.is_zeroed = true;
      }
    }
    clear(names, to_none);
    return {};
  }
  Trained& trained = at(optimizer);
  std::set<std::string> names;
  for (const std::string& name : members(optimizer)) names.insert(name);
  if (by == Zeroing::Wrapped) {
    if (!to_none && !trained.is_idle()) return Expected::not_made();
    if (trained.members_side == Side::Wrapper) {
      for (const std::string& name : trained.unmatched) {
        // It would stay, of passes that may be counted and infinite unlike the next.
        const auto has = [&](int rank) { return of(rank).contains(name); };
        if (std::ranges::any_of(active(), has)) return Expected::not_made();
        names.erase(name);
      }
    }
    trained.has_overflow = false;
    if (!trained.is_idle()) trained.is_zeroed = true;
    if (trained.passes == 0 && !trained.is_synchronized && !trained.is_broken) restart(trained);
    clear(names, to_none);
    return {};
  }
  if (!joined_.empty() && !new_in(optimizer).empty()) return Expected::not_made();
  if (!to_none && is_sharded(setup_.mode) && trained.has_local) return Expected::not_made();
  if (!to_none && trained.is_broken) return Expected::not_made();  // it may not have begun
  const bool has_begun = trained.passes > 0 || trained.is_synchronized || trained.is_broken;
  if (has_begun) clear(trained.reduced, true);
  if (trained.passes > 0) trained.has_layout = true;
  // Whether a gradient has arrived before backward() threw depends on autograd's order.
  if (trained.is_broken && !trained.has_layout) trained.is_layout_known = false;
  clear(names, to_none);
  for (const int rank : active()) ++trained.zero_grads[static_cast<std::size_t>(rank)];
  trained.has_overflow = false;
  restart(trained);
  match(optimizer);
  return {};
}

Expected Reference::step_accelerated(const AcceleratedStep& step) {
  const bool overflows = step.passes.back().overflowing >= 0;
  for (const Pass& pass : step.passes) {
    const bool is_possible = joined_.empty() && !problem_with_shares(pass) &&
                             !involved(pass).empty() && (!overflows || setup_.scales);
    if (!is_possible) return Expected::not_made();
  }
  zero(0, Zeroing::Wrapper, true);
  for (const Pass& pass : step.passes) {
    if (!backward(pass).returns()) throw std::logic_error("a pass of an Accelerator");
  }
  Expected expected;
  if (step.is_skipped) {
    zero(0, Zeroing::Wrapper, true);
  } else {
    if (step.max_norm > 0.0) {
      unscale(0);
      expected.numbers = clip_norm(0, step.max_norm, 2.0).numbers;
    }
    const Expected end = this->step(0);
    if (!end.returns()) throw std::logic_error("a step of an Accelerator");
    update({});
    expected.numbers.insert(expected.numbers.begin(), end.numbers[0]);
  }
  return expected;
}

Expected Reference::unscale(int optimizer) {
  Trained& trained = at(optimizer);
  Expected expected = problem_with_reducing(optimizer);
  if (!setup_.scales || !expected.returns() || !joined_.empty()) return Expected::not_made();
  if (!has_scaled_) return Expected::refused({"unscale_() before any scale()"});
  if (!trained.has_begun() && !trained.is_synchronized) return Expected::not_made();
  if (trained.has_stepped) return Expected::refused({"unscale_() after step()"});
  if (trained.is_unscaled) return Expected::refused({"unscale_() a second time"});
  reduce(optimizer);
  trained.is_unscaled = trained.are_unscaled = true;
  return expected;
}

Expected Reference::update(std::optional<double> scale) {
  if (!setup_.scales) return Expected::not_made();
  const auto is_pending = [](const Trained& trained) {
    return trained.has_begun() || trained.is_synchronized;
  };
  const auto is_unknown = [](const Trained& trained) {
    return trained.is_unscaled && !trained.has_stepped;
  };
  if (std::ranges::any_of(trained_, is_pending)) return Expected::not_made();
  if (!scale && std::ranges::any_of(trained_, is_unknown)) return Expected::not_made();
  if (!std::ranges::any_of(trained_, &Trained::is_unscaled)) return Expected::not_made();
  if (scale) {
    scaler_.scale = *scale;
  } else if (scaler_overflowed_) {
    scaler_.scale *= scaler_.backoff_factor;
    scaler_.growth_tracker = 0;
  } else if (++scaler_.growth_tracker == scaler_.growth_interval) {
    scaler_.scale *= scaler_.growth_factor;
    scaler_.growth_tracker = 0;
  }
  scaler_overflowed_ = false;
  for (Trained& trained : trained_) trained.is_unscaled = trained.has_stepped = false;
  return {};
}

// --- parameters, groups, options ---

Expected Reference::freeze(int layer) {
  if (!has(model_.present(), layer)) return Expected::not_made();
  const bool is_known = std::ranges::all_of(model_.of_layer(layer), [&](const Parameter& each) {
    return at(plan_.optimizer_of(layer)).reduced.contains(each.first);
  });
  if (!joined_.empty() && !is_known) return Expected::not_made();
  const bool is_frozen = !model_.of_layer(layer).front().second.requires_grad();
  for (const Parameter& each : model_.of_layer(layer)) each.second.requires_grad_(is_frozen);
  return {};
}

/// Whether the members of groups can be changed on a side: the other one has no changes.
std::optional<Expected> Reference::problem_with_members(int optimizer, Side side) const {
  const Trained& trained = at(optimizer);
  if (!joined_.empty() || trained.members_side.value_or(side) != side) {
    return Expected::not_made();
  }
  for (const auto& [option, where] : trained.option_sides) {
    if (where != side) return Expected::not_made();
  }
  return std::nullopt;
}

Expected Reference::add_layer(int layer, Side side, bool is_new_group) {
  const int optimizer = plan_.optimizer_of(layer);
  if (has(model_.present(), layer)) return Expected::not_made();
  if (auto problem = problem_with_members(optimizer, side)) return *problem;
  model_.add(layer);
  std::vector<at::Tensor> tensors;
  Trained& trained = at(optimizer);
  for (const Parameter& each : model_.of_layer(layer)) {
    tensors.push_back(each.second);
    trained.unmatched.insert(each.first);
  }
  trained.members_side = side;
  auto& groups = trained.plain->param_groups();
  if (is_new_group) {
    trained.plain->add_param_group(OptimizerParamGroup(tensors, groups.front().options().clone()));
    if (side == Side::Wrapper) {  // it adds the group to both
      trained.members_side.reset();
      trained.unmatched.clear();
    }
  } else {
    for (const at::Tensor& tensor : tensors) groups.front().params().push_back(tensor);
  }
  return {};
}

Expected Reference::move(int optimizer, const std::string& name, Side side) {
  auto& groups = at(optimizer).plain->param_groups();
  if (groups.size() < 2) return Expected::not_made();
  if (auto problem = problem_with_members(optimizer, side)) return *problem;
  move_member(*at(optimizer).plain, model_.named(name));
  at(optimizer).members_side = side;
  return {};
}

Expected Reference::swap_groups(int optimizer, Side side) {
  auto& groups = at(optimizer).plain->param_groups();
  if (groups.size() < 2) return Expected::not_made();
  if (auto problem = problem_with_members(optimizer, side)) return *problem;
  std::swap(groups[0], groups[1]);
  at(optimizer).members_side = side;
  for (const int group : {0, 1}) {
    for (const Option option : {Option::Rate, Option::Decay}) {
      at(optimizer).option_sides[{group, option}] = side;
    }
  }
  return {};
}

Expected Reference::set_option(int optimizer, int group, Side side, Option option, double value) {
  Trained& trained = at(optimizer);
  if (static_cast<std::size_t>(group) >= trained.plain->param_groups().size()) {
    return Expected::not_made();
  }
  if (trained.members_side.value_or(side) != side) return Expected::not_made();
  const auto [place, is_first] = trained.option_sides.emplace(std::pair{group, option}, side);
  if (!is_first && place->second != side) return Expected::not_made();
  random_training::set_option(
      trained.plain->param_groups()[static_cast<std::size_t>(group)].options(), option, value);
  return {};
}

Expected Reference::add_buffer(double value) {
  if (!joined_.empty()) return Expected::not_made();
  model_.add_buffer(value);
  buffers_.push_back(value);
  return {};
}

Expected Reference::write(int layer, double factor, bool is_in_full, bool is_by_one) {
  const int optimizer = plan_.optimizer_of(layer);
  if (!has(model_.present(), layer) || !are_all_idle()) return Expected::not_made();
  if (!joined_.empty()) {
    const bool is_refused = is_in_full && is_full(setup_.mode);
    return is_refused ? needs_all("full_parameters()") : Expected::not_made();
  }
  if (!is_in_full && is_full(setup_.mode)) return Expected::not_made();
  if (is_by_one && !is_full(setup_.mode)) return Expected::not_made();
  const at::NoGradGuard no_grad;
  for (const Parameter& each : model_.of_layer(layer)) {
    const bool is_kept = !at(optimizer).reduced.contains(each.first);
    if (is_kept && (is_by_one || is_full(setup_.mode))) return Expected::not_made();
  }
  for (const Parameter& each : model_.of_layer(layer)) at::Tensor(each.second).mul_(factor);
  return {};
}

Expected Reference::write_badly(int layer, bool throws) const {
  const int optimizer = plan_.optimizer_of(layer);
  const bool is_possible = has(model_.present(), layer) && are_all_idle() && joined_.empty() &&
                           is_full(setup_.mode) && setup_.ranks > 1;
  if (!is_possible) return Expected::not_made();
  for (const Parameter& each : model_.of_layer(layer)) {
    const bool is_shared = at(optimizer).reduced.contains(each.first) && each.second.numel() > 0;
    if (!is_shared) return Expected::not_made();
  }
  if (throws) return Expected::refused({"full_parameters()"});
  return {.end = Expected::End::Throws,
          .words = {"full_parameters()", "different values"},
          .is_mismatch = true};
}

Expected Reference::rewrap(int optimizer) {
  Trained& trained = at(optimizer);
  if (!are_all_idle() || !joined_.empty()) return Expected::not_made();
  if (setup_.owns_optimizer || plan_.is_accelerated) return Expected::not_made();
  if (has_gradient(optimizer) || trained.is_unscaled) return Expected::not_made();
  if (trained.members_side || !trained.option_sides.empty()) return Expected::not_made();
  if (!trained.is_layout_known) return Expected::not_made();
  for (const std::string& name : trained.reduced) {
    const bool is_lost = trained.has_layout && is_sharded(setup_.mode);
    if (is_lost) trained.plain->state().erase(model_.named(name).unsafeGetTensorImpl());
  }
  complete_state(*trained.plain);
  trained.reduced.clear();
  match(optimizer);
  trained.has_layout = is_full(setup_.mode);
  trained.steps = 0;
  trained.zero_grads.assign(kMaxRanks, 0.0);
  return {};
}

// --- state and checkpoints ---

Expected Reference::needs_all(const std::string& call) const {
  if (joined_.empty()) return {};
  return Expected::refused({call, "joined"});
}

Expected Reference::save_full() const {
  if (!joined_.empty()) return needs_all("save_full_state()");
  if (!are_all_idle()) return Expected::not_made();
  return compare();
}

Expected Reference::state_of(int optimizer, const std::string& name) const {
  if (!at(optimizer).is_idle()) return Expected::not_made();
  if (!at(optimizer).reduced.contains(name)) return Expected::refused({"parameter_state()"});
  if (is_sharded(setup_.mode) && !joined_.empty()) return needs_all("parameter_state()");
  // No rank has a leaf of it in sharded modes, nor after resuming from one.
  if (model_.named(name).numel() == 0) return Expected::not_made();
  Expected expected;
  const auto& state = at(optimizer).plain->state();
  const auto found = state.find(model_.named(name).unsafeGetTensorImpl());
  if (found == state.end()) return expected;
  const auto* const adagrad = dynamic_cast<torch::optim::AdagradParamState*>(found->second.get());
  if (adagrad != nullptr && adagrad->step() == 0)
    return Expected::not_made();  // may be created later
  for (const auto& [field, value] : fields_of(*found->second)) {
    expected.words.push_back(field);
    expected.tensors.push_back(value.isTensor() ? value.toTensor().clone()
                                                : at::scalar_tensor(value.toScalar(), at::kDouble));
  }
  return expected;
}

Expected Reference::reset_state(int optimizer, const std::string& name) {
  if (!at(optimizer).is_idle() || !joined_.empty()) return Expected::not_made();
  if (!at(optimizer).reduced.contains(name)) return Expected::refused({"reset_parameter_state()"});
  at(optimizer).plain->state().erase(model_.named(name).unsafeGetTensorImpl());
  return {};
}

Expected Reference::state_map(int optimizer) const {
  if (is_sharded(setup_.mode)) return Expected::refused({"state()", "parameter_state()"});
  const bool has_empty = std::ranges::any_of(
      plan_.model.layers, [](const LayerPlan& layer) { return layer.kind == LayerKind::Empty; });
  if (has_empty) return Expected::not_made();
  // Adagrad's state is created in different calls.
  if (dynamic_cast<torch::optim::Adagrad*>(at(optimizer).plain.get()) != nullptr) {
    return Expected::not_made();
  }
  return Expected::number(static_cast<double>(at(optimizer).plain->state().size()));
}

/// torch::save and torch::load of the wrapper.
Expected Reference::archive(int optimizer) {
  const Trained& trained = at(optimizer);
  if (!trained.is_idle() || !joined_.empty() || trained.members_side) return Expected::not_made();
  if (!trained.option_sides.empty() || !trained.is_layout_known) return Expected::not_made();
  const bool has_shards = trained.has_layout && is_sharded(setup_.mode);
  if (has_shards) return Expected::refused({"torch::save", "needs whole state"});
  return {};
}

Expected Reference::register_hook(int optimizer) const {
  if (is_sharded(setup_.mode)) return Expected::refused({"register_bucket_hook()"});
  if (!joined_.empty()) return Expected::not_made();
  if (at(optimizer).is_idle()) return {};
  if (!is_certainly_in_flight(optimizer)) return Expected::not_made();
  return Expected::refused({"register_bucket_hook()", "being reduced"});
}

/// The parameters of each group.
std::string Reference::signature() const {
  std::string text;
  for (int o = 0; o < count(); ++o) {
    for (const OptimizerParamGroup& group : at(o).plain->param_groups()) {
      text += "{";
      for (const at::Tensor& tensor : group.params()) text += name_of(tensor) + " ";
    }
  }
  return text + std::to_string(buffers_.size());
}

Expected Reference::save(int folder) {
  for (const Trained& trained : trained_) {
    if (trained.is_broken || trained.is_zeroed) return Expected::not_made();
  }
  if (!joined_.empty()) return needs_all("save()");
  Snapshot snapshot;
  snapshot.buffers = buffers_;
  snapshot.scaler = scaler_;
  snapshot.signature = signature();
  for (const Parameter& each : model_.parameters()) {
    snapshot.parameters.emplace_back(each.first, each.second.detach().clone());
  }
  for (Trained& trained : trained_) {
    trained.option_sides.clear();
    trained.members_side.reset();
    trained.unmatched.clear();
    snapshot.archives.push_back(saved(*trained.plain));
    snapshot.have_decay.push_back(have_decay(*trained.plain));
    snapshot.steps.push_back(trained.steps);
    snapshot.have_layouts.push_back(trained.has_layout);
  }
  snapshots_[folder] = std::move(snapshot);
  return {};
}

Expected Reference::load(int folder, bool takes_state) {
  const auto found = snapshots_.find(folder);
  if (found == snapshots_.end()) return Expected::not_made();
  const Snapshot& snapshot = found->second;
  if (plan_.is_accelerated) {
    if (!takes_state || !joined_.empty()) return Expected::not_made();
    zero(0, Zeroing::Wrapper, true);
  }
  if (!joined_.empty()) return are_all_idle() ? needs_all("load()") : Expected::not_made();
  if (!at(0).is_idle()) {
    if (at(0).is_synchronized && !at(0).is_zeroed) {
      return Expected::refused({"load()", "reduced and not used yet"});
    }
    if (!is_certainly_in_flight(0)) return Expected::not_made();
    return Expected::refused({"load()", "being reduced"});
  }
  if (!are_all_idle() || snapshot.signature != signature()) return Expected::not_made();
  for (int o = 0; o < count() && takes_state; ++o) {
    if (snapshot.have_decay[static_cast<std::size_t>(o)] == have_decay(*at(o).plain)) continue;
    if (count() > 1) return Expected::not_made();
    return Expected::refused({"weight_decay", "strict = false"});
  }
  const at::NoGradGuard no_grad;
  for (const Parameter& each : snapshot.parameters) model_.named(each.first).copy_(each.second);
  buffers_ = snapshot.buffers;
  for (int o = 0; o < count(); ++o) {
    const auto i = static_cast<std::size_t>(o);
    if (takes_state) {
      random_training::load(*at(o).plain, snapshot.archives[i]);
      at(o).steps = snapshot.steps[i];
      at(o).has_layout = at(o).has_layout || snapshot.have_layouts[i];
    }
    at(o).option_sides.clear();
    match(o);
  }
  scaler_ = snapshot.scaler;
  Expected expected;
  for (const std::int64_t steps : snapshot.steps) {
    expected.numbers.push_back(static_cast<double>(steps));
  }
  return expected;
}

// --- joining ---

Expected Reference::join(int rank) {
  if (count() > 1 || plan_.is_accelerated || rank >= setup_.ranks || joined_.contains(rank) ||
      active().size() < 2) {
    return Expected::not_made();
  }
  if (!are_all_idle() || has_gradient(0) || !new_in(0).empty()) return Expected::not_made();
  if (at(0).members_side || !at(0).option_sides.empty()) return Expected::not_made();
  if (at(0).is_unscaled) return Expected::not_made();  // nobody would update() its scaler
  joined_.insert(rank);
  return {};
}

Expected Reference::join_rest() {
  if (!are_all_idle()) {
    const bool is_refused = joined_.empty() && count() == 1 && is_certainly_in_flight(0);
    if (!is_refused) return Expected::not_made();
    return Expected::refused({"join()", "being reduced"});
  }
  if (!new_in(0).empty()) return Expected::not_made();
  for (Trained& trained : trained_) {
    // Ranks that had joined make up for what they have missed on both sides.
    if (joined_.empty()) break;
    for (auto& [option, side] : trained.option_sides) side.reset();
  }
  joined_.clear();
  for (int o = 0; o < count(); ++o) {
    zero(o, Zeroing::Wrapper, true);
    if (is_sharded(setup_.mode)) at(o).has_layout = true;
  }
  return {};
}

// --- what a program asks ---

Expected Reference::compare() const { return {.tensors = {model_.flat()}}; }

Expected Reference::evaluate(Layers networks, int batch) const {
  if ((networks & ((1U << plan_.model.networks) - 1)) != networks) return Expected::not_made();
  const at::NoGradGuard no_grad;
  return Expected::number(model_.loss(rows_of(batch, 0, 3), networks, ~Layers{0}).item<double>());
}

Expected Reference::has_gradients(int optimizer) const {
  const Trained& trained = at(optimizer);
  if (trained.is_broken || trained.is_zeroed || trained.is_synchronized) {
    return Expected::not_made();
  }
  Expected expected;
  for (const auto& arrived : trained.arrived) {
    expected.numbers.push_back(arrived.empty() ? 0.0 : 1.0);
  }
  return expected;
}

Expected Reference::count_zero_grads(int optimizer) const {
  Expected expected;
  expected.numbers = at(optimizer).zero_grads;
  return expected;
}

void move_member(torch::optim::Optimizer& optimizer, const at::Tensor& tensor) {
  auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto is_it = [&](const at::Tensor& each) { return each.is_same(tensor); };
    if (std::erase_if(groups[i].params(), is_it) == 0) continue;
    return groups[(i + 1) % groups.size()].params().push_back(tensor);
  }
}

}  // namespace kolo::random_training
