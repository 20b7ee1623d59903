#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/objects.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "train/optimizer/step_protocol.hpp"

namespace kolo::train {
namespace {

class WholeSteps final : public StepProtocol {
 public:
  WholeSteps(TrainingContext& context, GradientReducers& reducers, OptionSync& option_sync,
             const RankComparison& comparison)
      : StepProtocol(context, reducers), option_sync_(option_sync), comparison_(comparison) {}

  void announce(const std::string&, const nlohmann::json&) override {}
  void begin_reduction(bool) override {}
  at::Tensor step(const LossClosure& closure, const std::function<void()>& reduce) override {
    if (closure) {
      return context_.wrapped.step([&] {
        at::Tensor loss = closure();
        reduce();
        return loss;
      });
    }
    reduce();
    return context_.wrapped.step(nullptr);
  }
  void skip() override {}
  void drop() override {}
  void restart() override {}
  int join() override;

  GlobalGradients::GatherRows gather_rows() override { return nullptr; }
  int copies_of_gradients() const override { return context_.set.size(); }

 private:
  std::vector<int> find_joined(const std::string& call) override;
  void copy_from(int root);

  OptionSync& option_sync_;
  const RankComparison& comparison_;
};

/// Joined ranks give an empty text.
std::vector<int> WholeSteps::find_joined(const std::string& call) {
  std::vector<int> joined;
  const std::vector<std::string> calls =
      allgather_object(call, {.name = context_.prefix + ".call", .process_set = &context_.set});
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].empty()) joined.push_back(context_.set.ranks()[i]);
    if (calls[i].empty() || calls[i] == call) continue;
    throw MismatchError("DistributedOptimizer: rank " +
                        std::to_string(context_.set.runtime().rank()) + " called " + call +
                        ", and rank " + std::to_string(context_.set.ranks()[i]) + " " + calls[i] +
                        ". Let all ranks make the same calls in the same order.");
  }
  return joined;
}

/// If ranks took different numbers of steps, copies the parameters, optimizer state and options of
/// a rank that took the most to all. Rebuilds reducers if ranks have laid out buckets differently.
/// Before, compares the last step of those that took the most.
int WholeSteps::join() {
  const int last = kolo::join(&context_.set);
  // The names of operations depend on additions and layouts.
  struct Progress {
    std::int64_t steps, additions, layouts, reductions;
    auto operator<=>(const Progress&) const = default;
  };
  Progress own{context_.steps, reducers_.additions(), reducers_.layouts(), context_.reductions};
  std::vector<Progress> all(static_cast<std::size_t>(context_.set.size()));
  allgather({&own, DType::Int64, {1, 4}, Device{}}, [&](const auto&) { return all.data(); },
            {.name = context_.prefix + ".joined", .process_set = &context_.set});
  const auto furthest = std::max_element(all.begin(), all.end());
  comparison_.compare_last(own.reductions == furthest->reductions);
  context_.reductions = furthest->reductions;
  if (*furthest == *std::min_element(all.begin(), all.end())) return last;

  const bool have_same_names = std::ranges::all_of(all, [&](const Progress& other) {
    return other.additions == own.additions && other.layouts == own.layouts;
  });
  copy_from(context_.set.ranks()[static_cast<std::size_t>(furthest - all.begin())]);
  context_.steps = furthest->steps;
  if (have_same_names) return last;
  std::int64_t additions = own.additions;
  for (const Progress& other : all) additions = std::max(additions, other.additions);
  reducers_.rebuild(additions);
  return last;
}

void WholeSteps::copy_from(int root) {
  option_sync_.merge(context_.groups, context_.wrapped.groups());
  std::vector<at::Tensor> parameters;
  for (const auto& group : context_.groups) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  broadcast_parameters(parameters, root, &context_.set);
  context_.wrapped.broadcast_state(root, context_.set);
  option_sync_.merge(context_.groups, context_.wrapped.groups());
}

}  // namespace

std::unique_ptr<StepProtocol> make_whole_steps(TrainingContext& context, GradientReducers& reducers,
                                               OptionSync& option_sync,
                                               const RankComparison& comparison) {
  return std::make_unique<WholeSteps>(context, reducers, option_sync, comparison);
}

}  // namespace kolo::train
