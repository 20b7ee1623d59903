#include "gpt/options.hpp"

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace options_test {

std::variant<gpt::Options, examples::Exit> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train_gpt");
  return gpt::parse_options(static_cast<int>(arguments.size()), arguments.data());
}

gpt::Options options(const std::vector<const char*>& arguments) {
  return std::get<gpt::Options>(parse(arguments));
}

TEST(Options, Presets_SetTheModel) {
  const gpt::Options small = options({});
  EXPECT_EQ(small.layers, 3);
  EXPECT_EQ(small.width, 128);
  EXPECT_EQ(small.context, 64);
  EXPECT_EQ(small.batch, 32);
  EXPECT_EQ(options({"--preset", "small"}).width, 128);
  const gpt::Options medium = options({"--preset", "medium"});
  EXPECT_EQ(medium.layers, 6);
  EXPECT_EQ(medium.width, 384);
  EXPECT_EQ(medium.context, 128);
  EXPECT_EQ(medium.batch, 8);
}

TEST(Options, SingleValues_WinOverThePresetWhereverItStands) {
  for (const auto& arguments : {std::vector<const char*>{"--layers", "2", "--preset", "medium"},
                                std::vector<const char*>{"--preset", "medium", "--layers", "2"}}) {
    EXPECT_EQ(options(arguments).layers, 2);
    EXPECT_EQ(options(arguments).width, 384);
  }
}

TEST(Options, EveryFlag_ReachesItsField) {
  std::istringstream line(
      "--steps 7 --batch 5 --layers 2 --width 60 --heads 6 --context 9 --lr 0.25 --seed 0 "
      "--json out --text a b --compression bf16 --device cuda --shard optimizer --fused "
      "--efficiency --save c --save-every 3 --load d --export e");
  const std::vector<std::string> words(std::istream_iterator<std::string>(line), {});
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  const gpt::Options given = options(arguments);
  EXPECT_EQ(given.steps, 7);
  EXPECT_EQ(given.batch, 5);
  EXPECT_EQ(given.layers, 2);
  EXPECT_EQ(given.width, 60);
  EXPECT_EQ(given.heads, 6);
  EXPECT_EQ(given.context, 9);
  EXPECT_EQ(given.learning_rate, 0.25);
  EXPECT_EQ(given.seed, 0);
  EXPECT_EQ(given.json, "out");
  EXPECT_EQ(given.text, (std::vector<std::filesystem::path>{"a", "b"}));
  EXPECT_EQ(given.compression, "bf16");
  EXPECT_EQ(given.device, kolo::DeviceKind::Cuda);
  EXPECT_EQ(given.shard, kolo::Shard::Optimizer);
  EXPECT_TRUE(given.fused);
  EXPECT_TRUE(given.efficiency);
  EXPECT_EQ(given.save, "c");
  EXPECT_EQ(given.save_every, 3);
  EXPECT_EQ(given.load, "d");
  EXPECT_EQ(given.export_file, "e");
}

TEST(Options, Help_ExitsWithZeroAndNamesTheFlags) {
  const auto exit = std::get<examples::Exit>(parse({"--help"}));
  EXPECT_EQ(exit.code, 0);
  for (const char* flag :
       {"--preset",     "--steps",       "--batch",      "--layers", "--width",
        "--heads",      "--context",     "--lr",         "--seed",   "--json",
        "--text",       "--compression", "--device",     "--shard",  "--fused",
        "--efficiency", "--save",        "--save-every", "--load",   "--export"}) {
    EXPECT_NE(exit.text.find(flag), std::string::npos) << flag;
  }
}

struct WrongCase {
  const char* name;
  std::vector<const char*> arguments;
  const char* text;  // expected in the error
};

class WrongOptions : public testing::TestWithParam<WrongCase> {};

TEST_P(WrongOptions, ExitWithTwoAndNameTheFlag) {
  const auto exit = std::get<examples::Exit>(parse(GetParam().arguments));
  EXPECT_EQ(exit.code, 2);
  EXPECT_NE(exit.text.find(GetParam().text), std::string::npos) << exit.text;
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongOptions,
    testing::Values(WrongCase{"unknown", {"--bogus"}, "--bogus"},
                    WrongCase{"preset", {"--preset", "big"}, "big not in"},
                    WrongCase{"save_every_without_save", {"--save-every", "3"}, "--save"},
                    WrongCase{"zero", {"--steps", "0"}, "--steps"},
                    WrongCase{"fraction", {"--batch", "1.5"}, "--batch"},
                    WrongCase{"word", {"--layers", "two"}, "--layers"},
                    WrongCase{"negative_seed", {"--seed", "-1"}, "--seed"},
                    WrongCase{"lr_zero", {"--lr", "0"}, "--lr"},
                    WrongCase{"lr_nan", {"--lr", "nan"}, "--lr"},
                    WrongCase{"compression", {"--compression", "zip"}, "--compression"},
                    WrongCase{"no_value", {"--json"}, "--json"},
                    WrongCase{"heads", {"--heads", "3"}, "--width 128 is not a multiple"}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(LearningRate, RisesOverATwentiethThenFallsToZero) {
  gpt::Options given;
  given.steps = 100;
  given.learning_rate = 1.0;
  EXPECT_DOUBLE_EQ(gpt::learning_rate(given, 0), 0.2);
  EXPECT_DOUBLE_EQ(gpt::learning_rate(given, 4), 1.0);
  EXPECT_DOUBLE_EQ(gpt::learning_rate(given, 5), 1.0);
  EXPECT_NEAR(gpt::learning_rate(given, 52), 0.5, 0.01);  // half-way down
  for (int step = 6; step < 100; ++step) {
    EXPECT_LT(gpt::learning_rate(given, step), gpt::learning_rate(given, step - 1));
    EXPECT_GT(gpt::learning_rate(given, step), 0);
  }
  given.steps = 1;
  EXPECT_DOUBLE_EQ(gpt::learning_rate(given, 0), 1.0);
}

}  // namespace options_test
