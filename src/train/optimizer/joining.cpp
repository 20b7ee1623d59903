#include "train/optimizer/joining.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/json_objects.hpp"
#include "kolo/torch/parameter_sync.hpp"

namespace kolo::train {

void JoinCommands::announce(const StepCommand& command) {
  if (context_.have_some_joined()) allgather(to_json(command));
}

std::optional<StepCommand> JoinCommands::receive() {
  const nlohmann::json command = allgather(nullptr);
  if (command.is_null()) return std::nullopt;
  return command_from(command);
}

/// Joined ranks send null. Returns the command of the first active rank, or null.
nlohmann::json JoinCommands::allgather(const nlohmann::json& own) {
  const std::vector<nlohmann::json> commands =
      allgather_object(own, {.name = context_.prefix + ".command", .process_set = &context_.set});
  const nlohmann::json* first = nullptr;
  int first_rank = 0;
  context_.step.active_ranks = static_cast<int>(
      std::ranges::count_if(commands, [](const auto& command) { return !command.is_null(); }));
  for (std::size_t i = 0; i < commands.size(); ++i) {
    if (commands[i].is_null()) continue;
    last_active_ = context_.set.ranks()[i];
    if (first == nullptr) {
      first = &commands[i];
      first_rank = *last_active_;
    }
    if (commands[i] == *first) continue;
    throw MismatchError("DistributedOptimizer: while some ranks have joined, rank " +
                        std::to_string(*last_active_) + " called " + commands[i].dump() +
                        " where rank " + std::to_string(first_rank) + " called " + first->dump() +
                        ". All must do the same.");
  }
  return first != nullptr ? *first : nlohmann::json();
}

namespace {

void copy_from(int root, TrainingContext& context, OptionSync& option_sync) {
  option_sync.merge(context.groups, context.wrapped.groups());
  std::vector<at::Tensor> parameters;
  for (const auto& group : context.groups) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  broadcast_parameters(parameters, root, &context.set);
  context.wrapped.broadcast_state(root, context.set);
  option_sync.merge(context.groups, context.wrapped.groups());
}

}  // namespace

void align_ranks(TrainingContext& context, GradientReducers& reducers, OptionSync& option_sync,
                 const RankComparison& comparison) {
  // The names of operations depend on additions and layouts.
  struct Progress {
    std::int64_t steps, additions, layouts;
    auto operator<=>(const Progress&) const = default;
  };
  Progress own{context.steps, reducers.additions(), reducers.layouts()};
  std::vector<Progress> all(static_cast<std::size_t>(context.set.size()));
  allgather({&own, DType::Int64, {1, 3}, Device{}}, [&](const auto&) { return all.data(); },
            {.name = context.prefix + ".joined", .process_set = &context.set});
  const auto furthest = std::max_element(all.begin(), all.end());
  comparison.compare_last(own.steps == furthest->steps);
  if (*furthest == *std::min_element(all.begin(), all.end())) return;

  const bool have_same_names = std::ranges::all_of(all, [&](const Progress& other) {
    return other.additions == own.additions && other.layouts == own.layouts;
  });
  copy_from(context.set.ranks()[static_cast<std::size_t>(furthest - all.begin())], context,
            option_sync);
  context.steps = furthest->steps;
  if (have_same_names) return;
  std::int64_t additions = own.additions;
  for (const Progress& other : all) additions = std::max(additions, other.additions);
  reducers.rebuild(additions);
}

}  // namespace kolo::train
