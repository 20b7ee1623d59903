#include "train/optimizer/joining.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/json_objects.hpp"
#include "kolo/objects.hpp"
#include "kolo/torch/parameter_sync.hpp"

namespace kolo::train {
namespace {

constexpr const char* kJoin = "DistributedOptimizer::join()";

// A joined rank looks this often whether it can submit further buckets.
constexpr auto kPause = std::chrono::milliseconds(1);

}  // namespace

void Attendance::meet(const std::string& purpose, const std::function<bool()>& meanwhile) {
  if (context_.set.size() == 1) return;
  for (GatheredUnits* const units : reducers_.units()) units->finish_gathering();
  Handle all = barrier_async(context_.unit_calls->next({.process_set = &context_.set}, purpose));
  while (meanwhile && meanwhile() && !all.wait_for(kPause)) {
  }
  all.wait();
}

void Attendance::find_joined_before(const std::string& purpose) {
  // A unit that is being gathered may show it, too: the joined ranks then wait for a command.
  for (GatheredUnits* const units : reducers_.units()) units->finish_gathering();
  if (context_.have_some_joined()) return;
  try {
    meet(purpose);
  } catch (const MismatchError& error) {
    if (!find_joined(error)) throw;
  }
}

bool Attendance::find_joined(const MismatchError& error) {
  if (std::string_view(error.what()).find(kJoin) == std::string_view::npos) return false;
  std::int64_t has_joined = context_.step.is_active ? 0 : 1;
  std::vector<std::int64_t> all(static_cast<std::size_t>(context_.set.size()));
  allgather({&has_joined, DType::Int64, {1}, Device{}}, [&](const auto&) { return all.data(); },
            {.name = context_.prefix + ".joined", .process_set = &context_.set});
  std::vector<int>& joined = context_.step.joined_ranks;
  joined.clear();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != 0) joined.push_back(context_.set.ranks()[i]);
  }
  return true;
}

void Attendance::require_all(const std::string& call, const std::function<void()>& refuse) {
  if (context_.set.size() == 1) return;
  std::vector<int> joined;
  const bool is_news = context_.is_sharded() && !context_.have_some_joined();
  if (context_.is_sharded()) {
    find_joined_before(call);
    joined = context_.step.joined_ranks;
  } else {
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
  }
  if (joined.empty()) return;
  if (is_news) {
    refuse();
    restart();
  }
  throw InvalidArgument("DistributedOptimizer: " + call + " needs all ranks, but " +
                        list_ranks(joined) + (joined.size() == 1 ? " has" : " have") +
                        " joined. Call it before any rank joins, or after join() has returned.");
}

bool Attendance::join() {
  std::vector<int>& joined = context_.step.joined_ranks;
  if (!context_.have_some_joined()) {
    try {
      meet(kJoin, [this] { return submit_without_wait(); });
      joined = context_.set.ranks();
    } catch (const MismatchError& error) {
      if (!find_joined(error)) throw;
    }
  }
  return joined.size() < context_.set.ranks().size();
}

/// Active ranks wait for these buckets in backward(), before they reduce.
bool Attendance::submit_without_wait() const {
  bool is_left = false;
  for (const auto& reducer : reducers_) is_left |= reducer->submit_without_wait();
  return is_left;
}

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
  context_.step.joined_ranks.clear();
  for (std::size_t i = 0; i < commands.size(); ++i) {
    if (commands[i].is_null()) {
      context_.step.joined_ranks.push_back(context_.set.ranks()[i]);
      continue;
    }
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
    std::int64_t steps, additions, layouts, reductions;
    auto operator<=>(const Progress&) const = default;
  };
  Progress own{context.steps, reducers.additions(), reducers.layouts(), context.reductions};
  std::vector<Progress> all(static_cast<std::size_t>(context.set.size()));
  allgather({&own, DType::Int64, {1, 4}, Device{}}, [&](const auto&) { return all.data(); },
            {.name = context.prefix + ".joined", .process_set = &context.set});
  const auto furthest = std::max_element(all.begin(), all.end());
  comparison.compare_last(own.reductions == furthest->reductions);
  context.reductions = furthest->reductions;
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
