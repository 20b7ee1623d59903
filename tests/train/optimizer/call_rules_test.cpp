#include "train/optimizer/call_rules.hpp"

#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "support/errors.hpp"

namespace kolo::test::call_rules_test {

using train::Call;
using train::CallRule;
using train::Outcome;
using train::StepPhase;

std::string text_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::Runs: return "runs";
    case Outcome::Waits: return "waits for them";
    case Outcome::Throws: return "throws";
  }
  return {};
}

std::string text_with_joined(const CallRule& rule) {
  if (!rule.needs_all_from) return "runs";
  switch (*rule.needs_all_from) {
    case Shard::None: return "throws";
    case Shard::Full: return "throws with `Full`";
    default: return "throws in the sharded modes";
  }
}

TEST(CallRulesTest, DocsShowThem) {
  std::string table =
      "| call | gradients in flight | reduced, not used | some ranks have joined |\n"
      "|---|---|---|---|\n";
  std::size_t place = 0;
  for (const CallRule& rule : train::call_rules()) {
    EXPECT_EQ(static_cast<std::size_t>(rule.call), place++) << rule.name;
    table += "| `" + std::string(rule.name) + "` | " + text_of(rule.in_flight) + " | " +
             text_of(rule.reduced) + " | " + text_with_joined(rule) + " |\n";
  }
  std::ifstream file(KOLO_SOURCE_FOLDER "/docs/training.md");
  const std::string docs{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(docs.find("\n" + table + "\n"), std::string::npos) << "docs/training.md should have:\n"
                                                               << table;
}

TEST(CallRulesTest, EachPhase_RefusesWhatTheyForbidAndSaysWhatToDo) {
  for (const CallRule& rule : train::call_rules()) {
    EXPECT_NO_THROW(train::require_phase(rule.call, StepPhase::Accumulating)) << rule.name;
    for (const StepPhase phase : {StepPhase::Reducing, StepPhase::Failed}) {
      if (rule.in_flight != Outcome::Throws) {
        EXPECT_NO_THROW(train::require_phase(rule.call, phase)) << rule.name;
        continue;
      }
      EXPECT_EQ(text_thrown_by<InvalidArgument>([&] { train::require_phase(rule.call, phase); }),
                "DistributedOptimizer: " + std::string(rule.name) +
                    " while gradients are being reduced. " + std::string(rule.remedy));
    }
  }
  EXPECT_EQ(
      text_thrown_by<InvalidArgument>(
          [] { train::require_phase(Call::Load, StepPhase::Synchronized); }),
      "DistributedOptimizer: load() while gradients are reduced and not used yet. Call step() "
      "or zero_grad() first.");
  EXPECT_NO_THROW(train::require_phase(Call::Join, StepPhase::Synchronized));
}

}  // namespace kolo::test::call_rules_test
