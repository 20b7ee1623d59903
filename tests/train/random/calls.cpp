// The alphabet: every public call of DistributedOptimizer and GradScaler, and what programs do
// beside them.
#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <c10/core/InferenceMode.h>

#include "kolo/error.hpp"
#include "kolo/torch/checkpoint.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "train/random/program.hpp"

namespace kolo::random_training {
namespace {

std::string on(int optimizer) { return "optimizer" + std::to_string(optimizer) + "."; }
std::string on(int optimizer, Side side) {
  return (side == Side::Wrapped ? "wrapped" : "optimizer") + std::to_string(optimizer) + ".";
}
template <class Value>
std::string text_of(const Value& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// --- a step ---

std::string text_of(const Pass& pass) {
  std::ostringstream text;
  text << "batch " << pass.batch << " of networks";
  for (int i = 0; i < 2; ++i) text << (has(pass.networks, i) ? " " + std::to_string(i) : "");
  for (const Share& share : pass.shares) {
    text << (&share == pass.shares.data() ? ": " : " | ") << share.rows << " rows";
    for (int i = 0; i < 6; ++i) {
      if (!has(share.used, i)) text << " without layer" << i;
    }
  }
  if (pass.failing >= 0) text << ", throws in layer" << pass.failing;
  if (pass.overflowing >= 0) text << ", infinite on rank " << pass.overflowing;
  return text.str();
}

Pass draw_pass(const Draw& draw) {
  simulator::Random& random = draw.random;
  const Plan& plan = draw.reference.plan();
  Pass pass{.batch = draw.number};
  pass.networks = static_cast<Layers>(random.between(1, (1 << plan.model.networks) - 1));
  pass.is_counted = random.one_in(4);
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    Share share{.rows = random.between(1, 3)};
    if (pass.is_counted && rank > 0 && random.one_in(4)) share.rows = 0;
    if (draw.reference.must_use_alike()) share.rows = std::max(share.rows, 1);
    if (random.one_in(2)) share.used &= ~(Layers{1} << draw.layer());
    if (rank > 0 && draw.reference.must_use_alike()) share.used = pass.shares.front().used;
    if (rank < draw.reference.ranks()) pass.shares.push_back(share);
  }
  return pass;
}

struct Backward final : Call {
  explicit Backward(Pass drawn) : pass(std::move(drawn)) {}
  Pass pass;

  static CallPtr draw(const Draw& draw) {
    Pass pass = draw_pass(draw);
    pass.is_local = draw.random.one_in(6);
    return std::make_shared<Backward>(std::move(pass));
  }
  static CallPtr draw_failing(const Draw& draw) {
    Pass pass = draw_pass(draw);
    for (Share& share : pass.shares) share.used = pass.shares.front().used;
    pass.failing = draw.random.between(0, 1);
    return std::make_shared<Backward>(std::move(pass));
  }
  static CallPtr draw_overflowing(const Draw& draw) {
    Pass pass = draw_pass(draw);
    pass.overflowing = draw.random.between(0, draw.reference.ranks() - 1);
    return std::make_shared<Backward>(std::move(pass));
  }
  std::string text() const override {
    return std::string(pass.is_local ? "no_sync: " : "") +
           (pass.is_counted ? "backward(loss_sum, count), " : "backward(), ") + text_of(pass);
  }
  Expected in_one_process(Reference& reference) const override { return reference.backward(pass); }
  void on_rank(Rank& rank, const Expected&) const override { rank.run(pass, rank.number()); }
  /// The scaler wants to have scaled a loss.
  void missed(Rank& rank, const Expected&) const override {
    static_cast<void>(rank.scaler().scale(torch::ones({})));
  }
};

struct Synchronize final : Call {
  explicit Synchronize(int optimizer) : o(optimizer) {}
  int o;

  static CallPtr draw(const Draw& draw) { return std::make_shared<Synchronize>(draw.optimizer()); }
  std::string text() const override { return on(o) + "synchronize()"; }
  Expected in_one_process(Reference& reference) const override { return reference.synchronize(o); }
  void on_rank(Rank& rank, const Expected&) const override { rank.optimizer(o).synchronize(); }
};

struct ForEachGradient final : Call {
  ForEachGradient(int optimizer, int visited, bool does_drop)
      : o(optimizer), layer(visited), drops(does_drop) {}
  int o, layer;
  bool drops;

  static CallPtr draw(const Draw& draw) {
    return std::make_shared<ForEachGradient>(draw.optimizer(), draw.layer(), draw.random.one_in(2));
  }
  std::string text() const override {
    return on(o) + "for_each_gradient(), which " + (drops ? "drops" : "halves") + " layer" +
           std::to_string(layer);
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.visit(o, layer, drops);
  }
  void on_rank(Rank& rank, const Expected& expected) const override {
    std::vector<std::string> names;
    for (const Parameter& each : rank.model().of_layer(layer)) names.push_back(each.first);
    const int visitors =
        rank.optimizer(o).for_each_gradient([&](const std::string& name, at::Tensor& gradient) {
          if (std::ranges::find(names, name) == names.end()) return;
          if (drops) {
            gradient.reset();
          } else {
            gradient.mul_(0.5);
          }
        });
    require_near("ranks that visit", visitors, expected.numbers[0]);
  }
};

struct ClipNorm final : Call {
  ClipNorm(int optimizer, double max, double type) : o(optimizer), max_norm(max), p(type) {}
  int o;
  double max_norm, p;

  static CallPtr draw(const Draw& draw) {
    const std::vector<double> types{1.0, 2.0, 2.0, 3.0, std::numeric_limits<double>::infinity(),
                                    0.0};
    return std::make_shared<ClipNorm>(draw.optimizer(), 0.2 * draw.random.between(1, 5),
                                      draw.random.pick(types));
  }
  std::string text() const override {
    return on(o) + "clip_grad_norm_(" + random_training::text_of(max_norm) + ", " +
           random_training::text_of(p) + ")";
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.clip_norm(o, max_norm, p);
  }
  void on_rank(Rank& rank, const Expected& expected) const override {
    const double norm = rank.optimizer(o).clip_grad_norm_(max_norm, p);
    if (expected.returns()) require_near("the norm", norm, expected.numbers[0]);
  }
};

struct ClipValue final : Call {
  ClipValue(int optimizer, double max) : o(optimizer), max_value(max) {}
  int o;
  double max_value;

  static CallPtr draw(const Draw& draw) {
    const double value = draw.random.one_in(6) ? -1.0 : 0.02 * draw.random.between(1, 5);
    return std::make_shared<ClipValue>(draw.optimizer(), value);
  }
  std::string text() const override {
    return on(o) + "clip_grad_value_(" + random_training::text_of(max_value) + ")";
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.clip_value(o, max_value);
  }
  void on_rank(Rank& rank, const Expected&) const override {
    rank.optimizer(o).clip_grad_value_(max_value);
  }
};

struct DropGradient final : Call {
  explicit DropGradient(int dropped) : layer(dropped) {}
  int layer;

  static CallPtr draw(const Draw& draw) { return std::make_shared<DropGradient>(draw.layer()); }
  std::string text() const override {
    return "grad() of layer" + std::to_string(layer) + " = undefined";
  }
  Expected in_one_process(Reference& reference) const override { return reference.drop(layer); }
  void on_rank(Rank& rank, const Expected&) const override {
    for (const Parameter& each : rank.model().of_layer(layer)) each.second.mutable_grad().reset();
  }
};

/// A rank that has joined takes no part in updates of the scaler.
void catch_up(Rank& rank, double scale, double growth_tracker) {
  GradScaler::State state = rank.scaler().state();
  state.scale = scale;
  state.growth_tracker = static_cast<std::int64_t>(growth_tracker);
  rank.scaler().set_state(state);
}

/// step(), of the GradScaler if there is one.
struct Step final : Call {
  Step(int optimizer, bool does_update) : o(optimizer), updates(does_update) {}
  int o;
  bool updates;

  static CallPtr draw(const Draw& draw) {
    return std::make_shared<Step>(draw.optimizer(), !draw.random.one_in(8));
  }
  std::string text() const override {
    return on(o) + "step()" + (updates ? ", scaler.update()" : "");
  }
  Expected in_one_process(Reference& reference) const override {
    // A rank that joins cannot learn that update() is due.
    const bool must_update = reference.setup().scales && reference.have_some_joined();
    if (must_update && !updates) return Expected::not_made();
    Expected expected = reference.step(o);
    // With a scaler: whether update() follows, which may not be possible yet.
    if (!expected.returns() || !updates) return expected;
    expected.numbers.push_back(reference.update({}).is_made() ? 1.0 : 0.0);
    expected.numbers.push_back(reference.scaler().scale);
    expected.numbers.push_back(static_cast<double>(reference.scaler().growth_tracker));
    return expected;
  }
  void on_rank(Rank& rank, const Expected& expected) const override {
    if (!rank.setup().scales && o == 0) {
      rank.optimizer(o).step();
    } else {
      const bool has_stepped = rank.scaler().step(rank.optimizer(o));
      if (!expected.returns()) return;
      require_near("whether it stepped", has_stepped, expected.numbers[0]);
    }
    if (expected.numbers.size() < 2 || expected.numbers[1] == 0.0) return;
    rank.scaler().update();
    require_near("the scale", rank.scaler().get_scale(), expected.numbers[2]);
  }
  void missed(Rank& rank, const Expected& expected) const override {
    if (expected.numbers.size() > 2) catch_up(rank, expected.numbers[2], expected.numbers[3]);
  }
};

struct StepWithClosure final : Call {
  explicit StepWithClosure(Pass drawn) : pass(std::move(drawn)) {}
  Pass pass;

  static CallPtr draw(const Draw& draw) {
    Pass pass = draw_pass(draw);
    pass.is_counted = false;
    for (Share& share : pass.shares) share.rows = std::max(share.rows, 1);
    return std::make_shared<StepWithClosure>(std::move(pass));
  }
  std::string text() const override { return on(0) + "step(closure), " + text_of(pass); }
  Expected in_one_process(Reference& reference) const override {
    return reference.step_with_closure(pass);
  }
  void on_rank(Rank& rank, const Expected& expected) const override {
    const at::Tensor loss = rank.optimizer(0).step([&] {
      at::Tensor own = rank.loss(pass, rank.number());
      own.backward();
      return own * pass.of(rank.number()).rows;
    });
    require_near("the closure's loss", loss.item<double>(),
                 expected.numbers[static_cast<std::size_t>(rank.number())]);
  }
};

/// Ranks step alone, with the same batch.
struct StepAlone final : Call {
  explicit StepAlone(Pass drawn) : pass(std::move(drawn)) {}
  Pass pass;

  static CallPtr draw(const Draw& draw) {
    Pass pass = draw_pass(draw);
    pass.is_counted = false;
    pass.is_local = true;
    for (Share& share : pass.shares) share = {.rows = 1, .used = pass.shares.front().used};
    return std::make_shared<StepAlone>(std::move(pass));
  }
  std::string text() const override {
    return "no_sync and skip_synchronize: backward() and step(), " + text_of(pass);
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.step_alone(pass);
  }
  void on_rank(Rank& rank, const Expected&) const override {
    rank.run(pass, 0);
    const auto guard = rank.optimizer(0).skip_synchronize();
    rank.optimizer(0).step();
  }
};

struct ZeroGrad final : Call {
  ZeroGrad(int optimizer, Zeroing zeroing, bool undefines)
      : o(optimizer), by(zeroing), to_none(undefines) {}
  int o;
  Zeroing by;
  bool to_none;

  static CallPtr draw(const Draw& draw) {
    return std::make_shared<ZeroGrad>(
        draw.optimizer(), static_cast<Zeroing>(draw.random.between(0, 2)), !draw.random.one_in(4));
  }
  std::string text() const override {
    const std::string call = to_none ? "zero_grad()" : "zero_grad(false)";
    if (by == Zeroing::Model) return "model->" + call;
    return on(o, by == Zeroing::Wrapper ? Side::Wrapper : Side::Wrapped) + call;
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.zero(o, by, to_none);
  }
  void on_rank(Rank& rank, const Expected&) const override {
    switch (by) {
      case Zeroing::Wrapper: return rank.optimizer(o).zero_grad(to_none);
      case Zeroing::Wrapped: return rank.wrapped(o).zero_grad(to_none);
      case Zeroing::Model:
        for (int i = 0; i < rank.plan().model.networks; ++i) {
          rank.model().network(i).zero_grad(to_none);
        }
    }
  }
};

struct Unscale final : Call {
  explicit Unscale(int optimizer) : o(optimizer) {}
  int o;

  static CallPtr draw(const Draw& draw) { return std::make_shared<Unscale>(draw.optimizer()); }
  std::string text() const override {
    return "scaler.unscale_(optimizer" + std::to_string(o) + ")";
  }
  Expected in_one_process(Reference& reference) const override { return reference.unscale(o); }
  void on_rank(Rank& rank, const Expected&) const override {
    rank.scaler().unscale_(rank.optimizer(o));
  }
};

struct Update final : Call {
  explicit Update(std::optional<double> new_scale) : scale(new_scale) {}
  std::optional<double> scale;

  static CallPtr draw(const Draw& draw) {
    const std::optional<double> scale = draw.random.one_in(2) ? std::optional(128.0) : std::nullopt;
    return std::make_shared<Update>(scale);
  }
  std::string text() const override {
    return scale ? "scaler.update(" + random_training::text_of(*scale) + ")" : "scaler.update()";
  }
  Expected in_one_process(Reference& reference) const override {
    Expected expected = reference.update(scale);
    expected.numbers = {reference.scaler().scale,
                        static_cast<double>(reference.scaler().growth_tracker)};
    return expected;
  }
  void on_rank(Rank& rank, const Expected& expected) const override {
    rank.scaler().update(scale);
    const GradScaler::State state = rank.scaler().state();
    require_near("the scale", state.scale, expected.numbers[0]);
    require_near("the growth tracker", static_cast<double>(state.growth_tracker),
                 expected.numbers[1]);
    if (!rank.scaler().is_enabled()) throw std::runtime_error("the scaler is not enabled");
  }
  void missed(Rank& rank, const Expected& expected) const override {
    catch_up(rank, expected.numbers[0], expected.numbers[1]);
  }
};

// --- parameters, groups, options ---

struct Freeze final : Call {
  explicit Freeze(int toggled) : layer(toggled) {}
  int layer;

  static CallPtr draw(const Draw& draw) { return std::make_shared<Freeze>(draw.layer()); }
  std::string text() const override { return "freezes or unfreezes layer" + std::to_string(layer); }
  Expected in_one_process(Reference& reference) const override { return reference.freeze(layer); }
  void on_rank(Rank& rank, const Expected&) const override {
    for (const Parameter& each : rank.model().of_layer(layer)) {
      each.second.requires_grad_(!each.second.requires_grad());
    }
  }
  void missed(Rank& rank, const Expected& expected) const override { on_rank(rank, expected); }
};

struct AddLayer final : Call {
  AddLayer(int added, Side where, bool in_new_group)
      : layer(added), side(where), is_new_group(in_new_group) {}
  int layer;
  Side side;
  bool is_new_group;

  static CallPtr draw(const Draw& draw) {
    return std::make_shared<AddLayer>(draw.layer(), draw.side(), draw.random.one_in(2));
  }
  std::string text() const override {
    return "registers layer" + std::to_string(layer) + "; " +
           (side == Side::Wrapper ? "optimizer" : "wrapped") +
           (is_new_group ? ".add_param_group()" : ".param_groups()[0].params().push_back()");
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.add_layer(layer, side, is_new_group);
  }
  void on_rank(Rank& rank, const Expected&) const override {
    rank.model().add(layer);
    std::vector<at::Tensor> tensors;
    for (const Parameter& each : rank.model().of_layer(layer)) tensors.push_back(each.second);
    const int o = rank.plan().optimizer_of(layer);
    torch::optim::Optimizer& own = rank.side(o, side);
    torch::optim::OptimizerParamGroup& first = own.param_groups().front();
    if (is_new_group && side == Side::Wrapper) {
      rank.optimizer(o).add_param_group({tensors, first.options().clone()});
    } else if (is_new_group) {
      own.add_param_group({tensors, first.options().clone()});
    } else {
      first.params().insert(first.params().end(), tensors.begin(), tensors.end());
    }
  }
};

struct MoveParameter final : Call {
  MoveParameter(int optimizer, std::string member, Side where)
      : o(optimizer), name(std::move(member)), side(where) {}
  int o;
  std::string name;
  Side side;

  static CallPtr draw(const Draw& draw) {
    const int optimizer = draw.optimizer();
    return std::make_shared<MoveParameter>(optimizer, draw.member(optimizer), draw.side());
  }
  std::string text() const override {
    return on(o, side) + "param_groups(): moves " + name + " to the next group";
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.move(o, name, side);
  }
  void on_rank(Rank& rank, const Expected&) const override {
    move_member(rank.side(o, side), rank.model().named(name));
  }
};

struct SwapGroups final : Call {
  SwapGroups(int optimizer, Side where) : o(optimizer), side(where) {}
  int o;
  Side side;

  static CallPtr draw(const Draw& draw) {
    return std::make_shared<SwapGroups>(draw.optimizer(), draw.side());
  }
  std::string text() const override { return on(o, side) + "param_groups(): swaps 0 and 1"; }
  Expected in_one_process(Reference& reference) const override {
    return reference.swap_groups(o, side);
  }
  void on_rank(Rank& rank, const Expected&) const override {
    auto& groups = rank.side(o, side).param_groups();
    std::swap(groups[0], groups[1]);
  }
};

struct SetOption final : Call {
  int o = 0;
  int group = 0;
  Side side = Side::Wrapper;
  Option option = Option::Rate;
  double value = 0.0;

  static CallPtr draw(const Draw& draw) {
    auto call = std::make_shared<SetOption>();
    call->o = draw.optimizer();
    call->group = draw.random.between(0, static_cast<int>(draw.reference.groups(call->o)) - 1);
    call->side = draw.side();
    call->option = draw.random.one_in(3) ? Option::Decay : Option::Rate;
    call->value = 0.001 * draw.random.between(1, 5);
    return call;
  }
  std::string text() const override {
    return on(o, side) + "param_groups()[" + std::to_string(group) +
           "]: " + (option == Option::Rate ? "lr" : "weight_decay") + " = " +
           random_training::text_of(value);
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.set_option(o, group, side, option, value);
  }
  void on_rank(Rank& rank, const Expected&) const override { set_on(rank, side); }
  /// Those that have taken steps may have it on both sides.
  void missed(Rank& rank, const Expected&) const override {
    set_on(rank, Side::Wrapper);
    set_on(rank, Side::Wrapped);
  }
  void set_on(Rank& rank, Side where) const {
    auto& groups = rank.side(o, where).param_groups();
    set_option(groups[static_cast<std::size_t>(group)].options(), option, value);
  }
};

struct AddBuffer final : Call {
  explicit AddBuffer(double drawn) : value(drawn) {}
  double value;

  static CallPtr draw(const Draw& draw) { return std::make_shared<AddBuffer>(draw.number); }
  std::string text() const override {
    return "model->register_buffer(), of " + random_training::text_of(value);
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.add_buffer(value);
  }
  void on_rank(Rank& rank, const Expected&) const override { rank.model().add_buffer(value); }
};

struct Write final : Call {
  Write(int written, double by, bool in_full, bool by_one)
      : layer(written), factor(by), is_in_full(in_full), is_by_one(by_one) {}
  int layer;
  double factor;
  bool is_in_full, is_by_one;

  static CallPtr draw(const Draw& draw) {
    const bool is_in_full = !draw.random.one_in(4);
    return std::make_shared<Write>(draw.random.between(0, draw.reference.plan().model.count() - 1),
                                   0.1 * draw.random.between(8, 11), is_in_full,
                                   is_in_full && draw.random.one_in(2));
  }
  std::string text() const override {
    return (is_in_full ? on(0) + "full_parameters(), " : std::string()) +
           (is_by_one ? "rank 0" : "each rank") + " multiplies layer" + std::to_string(layer) +
           " by " + random_training::text_of(factor);
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.write(layer, factor, is_in_full, is_by_one);
  }
  void on_rank(Rank& rank, const Expected&) const override {
    const auto multiply = [&] {
      if (is_by_one && rank.number() > 0) return;
      const at::NoGradGuard no_grad;
      for (const Parameter& each : rank.model().of_layer(layer)) {
        at::Tensor(each.second).mul_(factor);
      }
    };
    if (!is_in_full) return multiply();
    rank.optimizer(rank.plan().optimizer_of(layer)).full_parameters(multiply);
  }
};

struct WriteBadly final : Call {
  WriteBadly(int written, bool does_throw) : layer(written), throws(does_throw) {}
  int layer;
  bool throws;

  static CallPtr draw(const Draw& draw) {
    return std::make_shared<WriteBadly>(
        draw.random.between(0, draw.reference.plan().model.count() - 1), draw.random.one_in(2));
  }
  std::string text() const override {
    return on(0) + "full_parameters(), " +
           (throws ? "in which rank 0 throws" : "ranks write different values") + ", of layer" +
           std::to_string(layer);
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.write_badly(layer, throws);
  }
  void on_rank(Rank& rank, const Expected&) const override {
    rank.optimizer(rank.plan().optimizer_of(layer)).full_parameters([&] {
      const at::NoGradGuard no_grad;
      for (const Parameter& each : rank.model().of_layer(layer)) {
        at::Tensor(each.second).add_(0.5 * (rank.number() + 1));
      }
      if (throws && rank.number() == 0) throw InvalidArgument("full_parameters() of rank 0");
    });
  }
};

struct Rewrap final : Call {
  explicit Rewrap(int optimizer) : o(optimizer) {}
  int o;

  static CallPtr draw(const Draw& draw) { return std::make_shared<Rewrap>(draw.optimizer()); }
  std::string text() const override {
    return "optimizer" + std::to_string(o) + " ends, and is wrapped anew";
  }
  Expected in_one_process(Reference& reference) const override { return reference.rewrap(o); }
  void on_rank(Rank& rank, const Expected&) const override {
    rank.unwrap(o);
    rank.wrap(o);
  }
};

// --- state and checkpoints ---

struct ParameterState final : Call {
  ParameterState(int optimizer, std::string member) : o(optimizer), name(std::move(member)) {}
  int o;
  std::string name;

  static CallPtr draw(const Draw& draw) {
    const int optimizer = draw.optimizer();
    return std::make_shared<ParameterState>(optimizer, draw.member(optimizer));
  }
  std::string text() const override { return on(o) + "parameter_state(" + name + ")"; }
  Expected in_one_process(Reference& reference) const override {
    return reference.state_of(o, name);
  }
  void on_rank(Rank& rank, const Expected& expected) const override {
    const auto state = rank.optimizer(o).parameter_state(rank.model().named(name));
    if (!expected.returns()) return;
    for (std::size_t i = 0; i < expected.words.size(); ++i) {
      const auto field = state.find(expected.words[i]);
      if (field == state.end()) throw std::runtime_error("no " + expected.words[i]);
      const c10::IValue& value = field->second;
      require_near(
          expected.words[i],
          value.isTensor() ? value.toTensor() : at::scalar_tensor(value.toScalar(), at::kDouble),
          expected.tensors[i]);
    }
    require_near("fields of state", static_cast<double>(state.size()),
                 static_cast<double>(expected.words.size()));
  }
};

struct ResetState final : Call {
  ResetState(int optimizer, std::string member) : o(optimizer), name(std::move(member)) {}
  int o;
  std::string name;

  static CallPtr draw(const Draw& draw) {
    const int optimizer = draw.optimizer();
    return std::make_shared<ResetState>(optimizer, draw.member(optimizer));
  }
  std::string text() const override { return on(o) + "reset_parameter_state(" + name + ")"; }
  Expected in_one_process(Reference& reference) const override {
    return reference.reset_state(o, name);
  }
  void on_rank(Rank& rank, const Expected&) const override {
    rank.optimizer(o).reset_parameter_state(rank.model().named(name));
  }
};

struct StateMap final : Call {
  explicit StateMap(int optimizer) : o(optimizer) {}
  int o;

  static CallPtr draw(const Draw& draw) { return std::make_shared<StateMap>(draw.optimizer()); }
  std::string text() const override { return on(o) + "state()"; }
  Expected in_one_process(Reference& reference) const override { return reference.state_map(o); }
  void on_rank(Rank& rank, const Expected& expected) const override {
    const std::size_t size = rank.optimizer(o).state().size();
    if (!expected.returns()) return;
    require_near("parameters with state", static_cast<double>(size), expected.numbers[0]);
  }
};

struct Archive final : Call {
  explicit Archive(int optimizer) : o(optimizer) {}
  int o;

  static CallPtr draw(const Draw& draw) { return std::make_shared<Archive>(draw.optimizer()); }
  std::string text() const override {
    return "torch::save and torch::load of optimizer" + std::to_string(o);
  }
  Expected in_one_process(Reference& reference) const override { return reference.archive(o); }
  void on_rank(Rank& rank, const Expected&) const override {
    torch::serialize::OutputArchive written;
    rank.optimizer(o).save(written);
    std::stringstream stream;
    written.save_to(stream);
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    rank.optimizer(o).load(archive);
  }
};

struct RegisterHook final : Call {
  RegisterHook(int optimizer, bool does_reduce) : o(optimizer), reduces(does_reduce) {}
  int o;
  bool reduces;

  static CallPtr draw(const Draw& draw) {
    return std::make_shared<RegisterHook>(draw.optimizer(), draw.random.one_in(2));
  }
  std::string text() const override {
    return on(o) + "register_bucket_hook(" + (reduces ? "an all-reduce" : "") + ")";
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.register_hook(o);
  }
  void on_rank(Rank& rank, const Expected&) const override {
    if (!reduces) return rank.optimizer(o).register_bucket_hook({});
    const DistributedOptimizerOptions options = rank.setup().options();
    rank.optimizer(o).register_bucket_hook([options](GradientBucket bucket) {
      return allreduce_async_(bucket.gradients, {.op = options.op,
                                                 .join_divisor = options.join_divisor,
                                                 .name = bucket.name,
                                                 .process_set = bucket.process_set});
    });
  }
};

std::string file_of(int folder, int optimizer) {
  return "checkpoint" + std::to_string(folder) + "." + std::to_string(optimizer);
}

struct Save final : Call {
  Save(int place, bool in_background) : folder(place), is_in_background(in_background) {}
  int folder;
  bool is_in_background;

  static CallPtr draw(const Draw& draw) {
    const int drawn = draw.random.between(0, 3);
    return std::make_shared<Save>(drawn % 2, drawn >= 2);
  }
  std::string text() const override {
    return "save(" + file_of(folder, 0) + (is_in_background ? ", {.in_background = true})" : ")");
  }
  Expected in_one_process(Reference& reference) const override { return reference.save(folder); }
  void on_rank(Rank& rank, const Expected&) const override {
    for (int o = 0; o < rank.optimizers(); ++o) {
      SaveOptions options{.extras = {{"number", std::to_string(folder)}},
                          .in_background = is_in_background};
      if (rank.plan().is_accelerated) {
        rank.accelerator().save_state(rank.path(file_of(folder, o)), options);
        continue;
      }
      if (rank.setup().scales) options.scaler = &rank.scaler();
      rank.optimizer(o).save(rank.path(file_of(folder, o)), options);
    }
  }
};

struct Load final : Call {
  Load(int place, bool state, bool is_inferring)
      : folder(place), takes_state(state), is_in_inference(is_inferring) {}
  int folder;
  bool takes_state, is_in_inference;

  static CallPtr draw(const Draw& draw) {
    return std::make_shared<Load>(draw.random.between(0, 1), !draw.random.one_in(4),
                                  draw.random.one_in(4));
  }
  std::string text() const override {
    return std::string(is_in_inference ? "InferenceMode: " : "") + "load(" + file_of(folder, 0) +
           (takes_state ? ")" : ", {.optimizer_state = false})");
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.load(folder, takes_state);
  }
  void on_rank(Rank& rank, const Expected& expected) const override {
    const c10::InferenceMode inference(is_in_inference);
    for (int o = 0; o < rank.optimizers(); ++o) {
      const std::filesystem::path path = rank.path(file_of(folder, o));
      rank.optimizer(o).wait_for_save();
      if (expected.returns() && !has_checkpoint(path)) {
        throw std::runtime_error("no checkpoint " + path.string());
      }
      LoadOptions options{.optimizer_state = takes_state, .random_state = false};
      if (rank.setup().scales) options.scaler = &rank.scaler();
      const Loaded loaded = rank.plan().is_accelerated ? rank.accelerator().load_state(path).value()
                                                       : rank.optimizer(o).load(path, options);
      if (!expected.returns()) return;
      require_near("steps there", static_cast<double>(loaded.steps),
                   expected.numbers[static_cast<std::size_t>(o)]);
      if (loaded.extras.at("number") != std::to_string(folder)) {
        throw std::runtime_error("extras of another checkpoint");
      }
      if (rank.optimizers() > 1) continue;  // one may leave out what the other keeps sharded
      for (const std::string& name : loaded.left_out) throw std::runtime_error("left out " + name);
      for (const std::string& name : loaded.unused) throw std::runtime_error("unused " + name);
    }
  }
};

/// Writes one file, and reads its parameters again.
struct SaveFullState final : Call {
  static CallPtr draw(const Draw&) { return std::make_shared<SaveFullState>(); }
  std::string text() const override { return on(0) + "save_full_state()"; }
  Expected in_one_process(Reference& reference) const override { return reference.save_full(); }
  void on_rank(Rank& rank, const Expected& expected) const override {
    const std::filesystem::path file = rank.path("full.safetensors");
    rank.optimizer(0).save_full_state(file, rank.size() - 1);
    if (!expected.returns()) return;
    // A copy that no optimizer trains, on each rank.
    Model copy(rank.plan().model, rank.model().present(), 0.5);
    for (std::size_t i = 0; i < rank.model().buffers().size(); ++i) copy.add_buffer(-1.0);
    load_parameters(copy.network(0), file, {.strict = false});
    if (rank.plan().model.networks == 1) {
      require_near("parameters in the file", copy.flat(), expected.tensors[0]);
    }
  }
};

/// Parameters of a checkpoint, for inference.
struct LoadParameters final : Call {
  static CallPtr draw(const Draw&) { return std::make_shared<LoadParameters>(); }
  std::string text() const override { return "load_parameters() of the model"; }
  Expected in_one_process(Reference&) const override {
    return Expected::refused({"DistributedOptimizer"});
  }
  void on_rank(Rank& rank, const Expected&) const override {
    load_parameters(rank.model().network(0), rank.path("checkpoint0.0"));
  }
};

struct CheckReplicas final : Call {
  explicit CheckReplicas(int optimizer) : o(optimizer) {}
  int o;

  static CallPtr draw(const Draw& draw) {
    return std::make_shared<CheckReplicas>(draw.optimizer());
  }
  std::string text() const override { return on(o) + "check_replicas()"; }
  Expected in_one_process(Reference& reference) const override {
    return reference.needs_all("check_replicas()");
  }
  void on_rank(Rank& rank, const Expected&) const override { rank.optimizer(o).check_replicas(); }
};

// --- an Accelerator ---

struct Accelerated final : Call {
  explicit Accelerated(AcceleratedStep drawn) : step(std::move(drawn)) {}
  AcceleratedStep step;
  bool has_function = false;  // backward() takes one

  static CallPtr draw(const Draw& draw) {
    AcceleratedStep step;
    const int passes = draw.reference.setup().accumulation;
    const bool is_counted = draw.random.one_in(3);
    for (int i = 0; i < passes; ++i) {
      Pass pass = draw_pass(draw);
      pass.batch = 10 * draw.number + i;
      pass.is_counted = is_counted;
      pass.is_local = i + 1 < passes;
      pass.weight = is_counted ? 1.0 : 1.0 / passes;
      for (Share& share : pass.shares) share.rows = std::max(share.rows, 1);
      step.passes.push_back(std::move(pass));
    }
    step.is_skipped = draw.random.one_in(6);
    if (draw.reference.setup().scales && draw.random.one_in(5)) {
      step.passes.back().overflowing = draw.random.between(0, draw.reference.ranks() - 1);
    } else if (draw.random.one_in(3)) {
      step.max_norm = 0.2 * draw.random.between(1, 5);
    }
    auto call = std::make_shared<Accelerated>(std::move(step));
    call->has_function = !is_counted && draw.random.one_in(2);
    return call;
  }
  std::string text() const override {
    std::string text = "accelerator:";
    for (const Pass& pass : step.passes) {
      text += pass.is_counted ? " backward(loss_sum, count), " : " backward(), ";
      text += text_of(pass) + ";";
    }
    if (step.is_skipped) return text + " optimizer().zero_grad()";
    if (step.max_norm > 0.0) {
      text += " clip_grad_norm_(" + random_training::text_of(step.max_norm) + ")";
    }
    return text + " step()";
  }
  Expected in_one_process(Reference& reference) const override {
    Expected expected = reference.step_accelerated(step);
    expected.tensors = {at::scalar_tensor(reference.steps(0), at::kDouble)};
    return expected;
  }
  void run(Rank& rank, const Pass& pass) const {
    Pass plain = pass;
    plain.weight = 1.0;  // the Accelerator divides
    const at::Tensor loss = rank.loss(plain, rank.number());
    if (pass.is_counted) return rank.accelerator().backward(loss, pass.of(rank.number()).rows);
    if (!has_function) return rank.accelerator().backward(loss);
    static_cast<void>(rank.accelerator().backward([&] { return loss; }));
  }
  void on_rank(Rank& rank, const Expected& expected) const override {
    Accelerator& own = rank.accelerator();
    for (const Pass& pass : step.passes) {
      run(rank, pass);
      require_near("is_accumulating()", rank.accelerator().is_accumulating(), pass.is_local);
      if (step.is_skipped && !pass.is_local) return own.optimizer().zero_grad();
      if (step.max_norm > 0.0) {
        const auto norm = rank.accelerator().clip_grad_norm_(step.max_norm);
        if (!pass.is_local) require_near("the norm", norm.value(), expected.numbers[1]);
      }
      const bool has_stepped = rank.accelerator().step();
      if (!pass.is_local) require_near("step()", has_stepped, expected.numbers[0]);
    }
    require_near("steps()", static_cast<double>(rank.accelerator().steps()),
                 expected.tensors[0].item<double>());
  }
};

struct AskAccelerator final : Call {
  static CallPtr draw(const Draw&) { return std::make_shared<AskAccelerator>(); }
  std::string text() const override { return "accelerator: should_stop(), device(), …"; }
  Expected in_one_process(Reference&) const override { return {}; }
  void on_rank(Rank& rank, const Expected&) const override {
    require_near("should_stop()", rank.accelerator().should_stop(rank.number() == 0), 1.0);
    require_near("should_stop()", rank.accelerator().should_stop(false), 0.0);
    if (!rank.accelerator().device().is_cpu()) throw std::runtime_error("device() is no CPU");
    const auto autocast = rank.accelerator().autocast();
  }
};

/// Calls that need what prepare() did not get.
struct AskInVain final : Call {
  explicit AskInVain(int drawn) : number(drawn) {}
  int number;

  static CallPtr draw(const Draw& draw) {
    return std::make_shared<AskInVain>(draw.random.between(0, 4));
  }
  std::string text() const override {
    constexpr std::array<const char*, 5> kCalls{"epochs()", "epoch()", "gather_for_metrics()",
                                                "step_schedule()", "sample_generator()"};
    return std::string("accelerator.") + kCalls[static_cast<std::size_t>(number)];
  }
  Expected in_one_process(Reference&) const override { return Expected::refused({}); }
  void on_rank(Rank& rank, const Expected&) const override {
    switch (number) {
      case 0: static_cast<void>(rank.accelerator().epochs(2).begin()); return;
      case 1: static_cast<void>(rank.accelerator().epoch()); return;
      case 2: rank.accelerator().gather_for_metrics(torch::ones({2})); return;
      case 3: return rank.accelerator().step_schedule(0.5);
      default: static_cast<void>(rank.accelerator().sample_generator(0));
    }
  }
};

// --- joining ---

struct Join final : Call {
  explicit Join(int number) : joining(number) {}
  int joining;

  static CallPtr draw(const Draw& draw) {
    return std::make_shared<Join>(draw.random.between(0, draw.reference.ranks() - 1));
  }
  std::string text() const override {
    return "rank " + std::to_string(joining) + ": " + on(0) + "join()";
  }
  Expected in_one_process(Reference& reference) const override { return reference.join(joining); }
  void on_rank(Rank& rank, const Expected&) const override {
    if (rank.number() != joining) return;
    rank.optimizer(0).join();
    rank.is_away = true;
  }
};

struct JoinRest final : Call {
  static CallPtr draw(const Draw&) { return std::make_shared<JoinRest>(); }
  std::string text() const override { return "all others: join(), then all: zero_grad()"; }
  Expected in_one_process(Reference& reference) const override { return reference.join_rest(); }
  void on_rank(Rank& rank, const Expected&) const override {
    for (int o = 0; o < rank.optimizers() && !rank.is_away; ++o) rank.optimizer(o).wait_for_save();
    for (int o = 0; o < rank.optimizers() && !rank.is_away; ++o) {
      const int last = rank.optimizer(o).join();
      if (last < 0 || last >= rank.size()) throw std::runtime_error("no such rank joined last");
    }
    rank.is_away = false;
    for (int o = 0; o < rank.optimizers(); ++o) rank.optimizer(o).zero_grad();
  }
  bool ends_absence() const override { return true; }
};

// --- what a program asks ---

struct Compare final : Call {
  static CallPtr draw(const Draw&) { return std::make_shared<Compare>(); }
  std::string text() const override { return "reads the parameters"; }
  Expected in_one_process(Reference& reference) const override { return reference.compare(); }
  void on_rank(Rank& rank, const Expected& expected) const override {
    require_near("a parameter", rank.model().flat(), expected.tensors[0]);
  }
};

struct Evaluate final : Call {
  Evaluate(Layers which, int number, bool is_inferring)
      : networks(which), batch(number), is_in_inference(is_inferring) {}
  Layers networks;
  int batch;
  bool is_in_inference;

  static CallPtr draw(const Draw& draw) {
    const int networks = draw.reference.plan().model.networks;
    return std::make_shared<Evaluate>(
        static_cast<Layers>(draw.random.between(1, (1 << networks) - 1)), draw.number,
        draw.random.one_in(2));
  }
  std::string text() const override {
    return std::string(is_in_inference ? "InferenceMode" : "NoGradGuard") + ": evaluates batch " +
           std::to_string(batch);
  }
  Expected in_one_process(Reference& reference) const override {
    return reference.evaluate(networks, batch);
  }
  void on_rank(Rank& rank, const Expected& expected) const override {
    const c10::InferenceMode inference(is_in_inference);
    const at::NoGradGuard no_grad;
    const at::Tensor loss = rank.model().loss(rows_of(batch, 0, 3), networks, ~Layers{0});
    require_near("the loss", loss.item<double>(), expected.numbers[0]);
  }
};

struct Ask final : Call {
  explicit Ask(int optimizer) : o(optimizer) {}
  int o;

  static CallPtr draw(const Draw& draw) { return std::make_shared<Ask>(draw.optimizer()); }
  std::string text() const override {
    return on(o) + "has_gradients(), zero_grads(), report(), last_step_times()";
  }
  Expected in_one_process(Reference& reference) const override {
    Expected expected = reference.has_gradients(o);
    expected.tensors = {at::tensor(reference.count_zero_grads(o).numbers)};
    return expected;
  }
  void on_rank(Rank& rank, const Expected& expected) const override {
    DistributedOptimizer& own = rank.optimizer(o);
    require_near("has_gradients()", own.has_gradients(),
                 expected.numbers[static_cast<std::size_t>(rank.number())]);
    const double zeroed = static_cast<double>(own.zero_grads());
    require_near("zero_grads()", zeroed, expected.tensors[0][rank.number()].item<double>());
    const TrainingReport report = own.report();
    require_near("ranks in the report", report.ranks, rank.size());
    if (report.shard != shard_of(rank.setup().mode)) {
      throw std::runtime_error("the report has another shard mode");
    }
    static_cast<void>(own.last_step_times());
  }
};

/// The same on all ranks already.
struct Broadcast final : Call {
  static CallPtr draw(const Draw&) { return std::make_shared<Broadcast>(); }
  std::string text() const override { return "broadcast_parameters()"; }
  Expected in_one_process(Reference& reference) const override {
    return reference.have_some_joined() ? Expected::not_made() : Expected{};
  }
  void on_rank(Rank& rank, const Expected&) const override {
    for (int i = 0; i < rank.plan().model.networks; ++i) {
      broadcast_parameters(rank.model().network(i), rank.size() - 1);
    }
  }
};

constexpr int kEnd = 99;  // the checkpoint from which the next part resumes

}  // namespace

const std::vector<Letter>& alphabet() {
  static const std::vector<Letter> letters{
      {60, Backward::draw, Letter::In::Plain},
      {4, Backward::draw_failing, Letter::In::Plain},
      {4, Backward::draw_overflowing, Letter::In::Plain},
      {6, Synchronize::draw, Letter::In::Plain},
      {6, ForEachGradient::draw, Letter::In::Plain},
      {8, ClipNorm::draw, Letter::In::Plain},
      {5, ClipValue::draw, Letter::In::Plain},
      {6, DropGradient::draw, Letter::In::Plain},
      {50, Step::draw, Letter::In::Plain},
      {5, StepWithClosure::draw, Letter::In::Plain},
      {4, StepAlone::draw, Letter::In::Plain},
      {24, ZeroGrad::draw},
      {6, Unscale::draw, Letter::In::Plain},
      {6, Update::draw, Letter::In::Plain},
      {8, Freeze::draw},
      {8, AddLayer::draw},
      {5, MoveParameter::draw},
      {3, SwapGroups::draw},
      {8, SetOption::draw},
      {2, AddBuffer::draw},
      {6, Write::draw},
      {3, WriteBadly::draw},
      {3, Rewrap::draw},
      {5, ParameterState::draw},
      {4, ResetState::draw},
      {2, StateMap::draw},
      {3, Archive::draw, Letter::In::Plain},
      {3, RegisterHook::draw},
      {5, Save::draw},
      {8, Load::draw},
      {3, SaveFullState::draw},
      {1, LoadParameters::draw},
      {3, CheckReplicas::draw},
      {6, Join::draw},
      {5, JoinRest::draw},
      {14, Compare::draw},
      {6, Evaluate::draw},
      {4, Ask::draw},
      {2, Broadcast::draw},
      {70, Accelerated::draw, Letter::In::Accelerated},
      {4, AskAccelerator::draw, Letter::In::Accelerated},
      {4, AskInVain::draw, Letter::In::Accelerated},
  };
  return letters;
}

std::vector<CallPtr> ending(const Plan& plan, bool is_last) {
  std::vector<CallPtr> calls;
  for (int o = 0; o < plan.optimizers(); ++o) {
    calls.push_back(std::make_shared<ZeroGrad>(o, Zeroing::Wrapper, true));
  }
  calls.push_back(std::make_shared<JoinRest>());
  calls.push_back(std::make_shared<Compare>());
  if (!is_last) calls.push_back(std::make_shared<Save>(kEnd, false));
  return calls;
}

CallPtr beginning() { return std::make_shared<Load>(kEnd, true, false); }

}  // namespace kolo::random_training
