#include "torch/optimizer/rank_comparison.hpp"

#include <array>
#include <bit>

#include "base/text.hpp"
#include "torch/checkpoint/block_checksums.hpp"
#include "torch/optimizer/optimizer_facts.hpp"

namespace kolo::tensors {
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

std::uint64_t digest_of(const std::vector<Fact>& facts) {
  std::string bytes;
  for (const Fact& fact : facts) bytes += fact.name + '\0' + fact.value + '\0';
  return checksum_of(bytes.data(), bytes.size());
}

}  // namespace

void RankComparison::note(StepEnd end) {
  if (context_.set.size() == 1) return;
  end_ = end;
  if (end == StepEnd::Open) {
    dropped_.clear();
    failure_.clear();
    scale_ = 1.0;
  }
  const std::pair state{option_sync_.version(), batches_.additions()};
  if (end != StepEnd::Open && state != known_) {
    known_ = state;
    of_groups_ = facts_now();
    digest_of_groups_ = digest_of(of_groups_);
  }
  const std::array<std::uint64_t, 4> whole{digest_of_groups_, static_cast<std::uint64_t>(end_),
                                           checksum_of(dropped_.data(), dropped_.size()),
                                           std::bit_cast<std::uint64_t>(scale_)};
  context_.step.digest = static_cast<std::uint32_t>(checksum_of(whole.data(), sizeof(whole)));
}

void RankComparison::note_dropped(const std::vector<std::string>& parameters) {
  for (const std::string& name : parameters) {
    dropped_ += (dropped_.empty() ? "those of '" : ", '") + name + "'";
  }
}

void RankComparison::restart() {
  of_groups_.clear();
  digest_of_groups_ = 0;
  known_ = {};
  note(StepEnd::Open);
}

void RankComparison::require_alike() {
  if (!std::exchange(context_.step.digests_differ, false)) return;
  std::vector<Fact> facts = last_facts();
  if (!failure_.empty()) facts.front().value += ", after step() had thrown: " + failure_;
  restart();
  compare(facts);
}

void RankComparison::compare_last(bool counts) const {
  compare(counts ? last_facts() : std::vector<Fact>());
}

void RankComparison::compare_last_and_next() const {
  std::vector<Fact> facts = last_facts();
  for (Fact& fact : facts_now()) facts.push_back(std::move(fact));
  compare(facts);
}

void RankComparison::compare(const std::vector<Fact>& facts) const {
  if (context_.set.size() == 1) return;
  agree(context_.set, context_.prefix + ".alike", "DistributedOptimizer", facts, {}, kAdvice);
}

std::vector<Fact> RankComparison::last_facts() const {
  std::vector<Fact> facts{
      {"end of the last step", text_of(end_)},
      {"gradients dropped in the last step", dropped_.empty() ? "none" : dropped_},
      {"scale of the gradients in the last step", exact_text(scale_)}};
  facts.insert(facts.end(), of_groups_.begin(), of_groups_.end());
  return facts;
}

std::vector<Fact> RankComparison::facts_now() const {
  std::vector<ReducedParameter> parameters;
  for (const auto& reducer : batches_) {
    parameters.insert(parameters.end(), reducer->parameters().begin(), reducer->parameters().end());
  }
  return facts_of(option_sync_, parameters);
}

}  // namespace kolo::tensors
