#include "train/optimizer/rank_comparison.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/checksums.hpp"
#include "kolo/objects.hpp"
#include "train/gradients/parameter_checks.hpp"

namespace kolo::train {
namespace {

constexpr const char* kAdvice =
    "Take and drop the same steps on all ranks, with the same options. Ranks that have differed "
    "may have trained apart: load() a checkpoint, or broadcast_parameters() and the options.";

std::string text_of(StepEnd end) {
  switch (end) {
    case StepEnd::Open: return "neither step() nor zero_grad()";
    case StepEnd::Step: return "step()";
    case StepEnd::Skipped: return "a step that GradScaler skipped";
    case StepEnd::Dropped: return "zero_grad(), which dropped the gradients";
  }
  return {};
}

void append(std::string& list, const std::string& item) {
  list.append(list.empty() ? "" : ", ").append(item);
}

std::uint64_t digest_of(const std::vector<NamedValue>& facts) {
  std::string bytes;
  for (const NamedValue& fact : facts) bytes += fact.name + '\0' + fact.value + '\0';
  return checkpoints::checksum_of(bytes.data(), bytes.size());
}

}  // namespace

void RankComparison::note(StepEnd end) {
  if (context_.set.size() == 1) return;
  end_ = end;
  if (end == StepEnd::Open) {
    ++context_.reductions;
    changes_ = std::exchange(resets_, {});
    failure_.clear();
  }
  const std::pair state{option_sync_.version(), reducers_.additions()};
  if (end != StepEnd::Open && state != known_) {
    known_ = state;
    of_groups_ = facts_now();
    digest_of_groups_ = digest_of(of_groups_);
  }
  const std::array<std::uint64_t, 3> whole{
      digest_of_groups_, static_cast<std::uint64_t>(end_),
      checkpoints::checksum_of(changes_.data(), changes_.size())};
  context_.step.digest =
      static_cast<std::uint32_t>(checkpoints::checksum_of(whole.data(), sizeof(whole)));
}

void RankComparison::note_call(const std::string& call, const std::vector<double>& arguments) {
  append(changes_, call + "(" + exact_text(arguments) + ")");
}

void RankComparison::note_dropped(const std::vector<std::string>& parameters) {
  for (const std::string& name : parameters) append(changes_, "gradient of '" + name + "' dropped");
}

void RankComparison::note_reset(const std::string& parameter) {
  append(resets_, "reset_parameter_state('" + parameter + "')");
}

void RankComparison::restart() {
  of_groups_.clear();
  digest_of_groups_ = 0;
  known_ = {};
  resets_.clear();
  note(StepEnd::Open);
}

void RankComparison::require_alike() {
  if (!std::exchange(context_.step.digests_differ, false)) return;
  std::vector<NamedValue> facts = last_facts();
  if (!failure_.empty()) facts.front().value += ", after step() had thrown: " + failure_;
  restart();
  compare(facts);
}

void RankComparison::compare_last(bool counts) const {
  compare(counts ? last_facts() : std::vector<NamedValue>());
}

void RankComparison::compare_last_and_next() const {
  std::vector<NamedValue> facts = last_facts();
  for (NamedValue& fact : facts_now()) facts.push_back(std::move(fact));
  compare(facts);
}

void RankComparison::warn_of_skipped_batches(std::uint64_t zero_grads) const {
  const std::vector<std::string> all =
      allgather_object(std::to_string(zero_grads),
                       {.name = context_.prefix + ".batches", .process_set = &context_.set});
  if (context_.set.rank() != 0 || std::ranges::count(all, all.front()) == std::ssize(all)) return;
  std::string counts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    counts.append(i == 0 ? "" : ", ").append(all[i]).append(" on rank ");
    counts += std::to_string(context_.set.ranks()[i]);
  }
  KOLO_LOG(Warn)
      << "DistributedOptimizer: after " << context_.steps
      << " steps, ranks have begun different numbers of batches, as their calls of "
         "zero_grad() show: "
      << counts
      << ". Where a rank skips a batch before backward(), its later batches are combined "
         "with others of the other ranks. Let all skip it, or none; call join() where "
         "ranks have different numbers of batches.";
}

void RankComparison::compare(const std::vector<NamedValue>& facts) const {
  if (context_.set.size() == 1) return;
  check_agreement("DistributedOptimizer", facts, {},
                  {.name = context_.prefix + ".alike", .process_set = &context_.set}, kAdvice);
}

std::vector<NamedValue> RankComparison::last_facts() const {
  std::vector<NamedValue> facts{
      {"end of the last step", text_of(end_)},
      {"changes of gradients or state in the last step", changes_.empty() ? "none" : changes_}};
  facts.insert(facts.end(), of_groups_.begin(), of_groups_.end());
  return facts;
}

std::vector<NamedValue> RankComparison::facts_now() const {
  std::vector<ReducedParameter> parameters;
  for (const auto& reducer : reducers_) {
    parameters.insert(parameters.end(), reducer->parameters().begin(), reducer->parameters().end());
  }
  return facts_of(option_sync_, parameters);
}

}  // namespace kolo::train
