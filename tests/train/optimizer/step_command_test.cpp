#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "train/optimizer/step_commands.hpp"

namespace kolo::test::step_command_test {

using train::ClipCommand;
using train::ClipValueCommand;
using train::command_from;
using train::DiscardCommand;
using train::DropCommand;
using train::FindOverflowCommand;
using train::GatherCommand;
using train::SkipCommand;
using train::StepCommand;
using train::UnscaleCommand;
using train::UpdateCommand;

/// The command as another rank receives it.
template <class Command>
Command sent(const Command& command) {
  return std::get<Command>(command_from(nlohmann::json::parse(to_json(command).dump())));
}

TEST(StepCommandTest, Values_ArriveUnchanged) {
  const GatherCommand gather = sent(GatherCommand{"model.0", 5, 1});
  EXPECT_EQ(gather.reducer, "model.0");
  EXPECT_EQ(gather.unit, 5U);
  EXPECT_EQ(gather.slot, 1U);
  const ClipCommand clip = sent(ClipCommand{0.1, 3.5});
  EXPECT_EQ(clip.max_norm, 0.1);
  EXPECT_EQ(clip.norm_type, 3.5);
  EXPECT_EQ(sent(ClipValueCommand{0.7}).max_value, 0.7);
  EXPECT_EQ(sent(DropCommand{{"a", "b"}}).parameters, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(sent(UnscaleCommand{1.0 / 3.0}).scale, 1.0 / 3.0);
  const nlohmann::json options = {{{"lr", {0.3}}, {"betas", {0.9, 0.99}}}, {{"lr", {1e-9}}}};
  EXPECT_EQ(sent(UpdateCommand{options}).options, options);
}

TEST(StepCommandTest, EveryCommand_IsDistinguished) {
  const StepCommand commands[] = {ClipCommand{1, 2}, ClipValueCommand{1},   DropCommand{},
                                  UnscaleCommand{2}, FindOverflowCommand{}, UpdateCommand{nullptr},
                                  SkipCommand{},     DiscardCommand{}};
  for (const StepCommand& command : commands) {
    EXPECT_EQ(command_from(to_json(command)).index(), command.index());
  }
}

TEST(StepCommandTest, AnUnknownCommand_IsRefused) {
  EXPECT_THROW(command_from({{"call", "dance"}}), InvalidArgument);
}

}  // namespace kolo::test::step_command_test
